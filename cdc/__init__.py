"""Capture: PostgreSQL's write-ahead log becomes ordered, keyed change events on compacted Kafka topics.

Imports point down: ``stream``, ``pipeline``, ``capture | postgres | kafka``, ``toast``, ``protocol``, ``model``.
``capture`` decides. ``postgres`` and ``kafka`` do input and output, and don't import each other. ``toast`` keeps large
values. ``protocol`` turns bytes into values and back. ``model`` holds the words that everyone uses. ``stream`` puts the
parts together.
"""
