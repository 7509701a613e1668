"""Stream queries: Spark's event-time operators over Kafka topics with JSON, patterns, and webhooks for their rows.
``jobs`` runs in the driver. ``executor`` runs in Spark's tasks, which have no ``lockstep`` package.
"""
