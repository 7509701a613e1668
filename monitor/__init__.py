"""How far every stage is: WAL, received, in Kafka, applied per sink."""
