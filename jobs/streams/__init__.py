"""Stream queries: Spark's own event-time operators over Kafka topics with JSON, and their final results in a sink."""
