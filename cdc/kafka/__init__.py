"""What is asked of Kafka: topics, the transactional publisher, control topics, and how a client is configured."""
