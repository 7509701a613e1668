"""The jobs of stream queries, in the driver of the jobs of sinks, and what they leave for commands to see."""
