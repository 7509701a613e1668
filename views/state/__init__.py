"""A view's state: an ordered map of bytes that changes in whole steps, in memory or in a file."""
