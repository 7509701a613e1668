"""Spark jobs: topics to sinks, one Structured Streaming query per sink and generation. ``driver`` runs them."""
