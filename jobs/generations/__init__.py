"""Generations of a sink: their records, who may apply to one, and how a switch waits for a batch."""
