"""Wrappers between a job and any destination: they wait, and leave out, mask and rename columns."""
