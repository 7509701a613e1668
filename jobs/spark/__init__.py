"""Spark itself: the session, its jars and classes, frames over topics, and its SQL."""
