"""Spark jobs: topics to sinks, one Structured Streaming query per sink. What runs in executors imports no client of Kafka."""
