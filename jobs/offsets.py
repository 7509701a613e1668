"""Positions in the log."""

from sinks.contract import TopicPartition

Offsets = dict[TopicPartition, int]
"""Next offset to read, per topic and partition."""
