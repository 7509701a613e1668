"""The only code that knows the Kafka client: topics, transactional publisher, control topics."""
