"""Rejected events: the record of one, its topic, and how many may be open."""
