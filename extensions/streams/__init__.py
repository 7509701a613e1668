"""Stream queries: Spark's own event-time operators over Kafka topics with JSON, patterns, and webhooks of their rows.

``jobs`` runs in the driver, and ``executor`` in Spark's tasks, where nothing of ``lockstep`` is.
"""
