"""The jobs of stream queries, which run in the driver beside the jobs of sinks, and their records for commands."""
