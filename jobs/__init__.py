"""Spark jobs: topics to sinks, one Structured Streaming query per sink. Executors import no Kafka client."""
