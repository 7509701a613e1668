"""The only code that uses the Kafka client: topics, transactional publisher, control topics."""
