"""What the processes of a pipeline count and measure, for Prometheus."""
