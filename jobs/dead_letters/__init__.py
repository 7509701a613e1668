"""Rejected events: the record that keeps one, its topic, and how many may be open."""
