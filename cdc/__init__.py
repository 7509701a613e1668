"""Capture: PostgreSQL's write-ahead log becomes ordered, keyed change events on compacted Kafka topics.

PostgreSQL is the only source, and its LSNs and types are in every layer: there is no seam for another database.
Imports point down: ``stream``, ``pipeline_settings``, ``capture | postgres | kafka``, ``toast``, ``protocol``,
``model``.
``capture`` decides. ``postgres`` and ``kafka`` do input and output, and don't import each other. ``toast`` keeps large
values. ``protocol`` turns bytes into values and back. ``model`` holds the words that everyone uses. ``stream`` puts the
parts together.
"""
