"""Generations of a sink: what is recorded of them, who may apply to one, and how a switch waits for a batch."""
