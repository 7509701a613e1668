"""Capture: PostgreSQL's write-ahead log becomes ordered, keyed change events on compacted Kafka topics.

PostgreSQL is the only source, and its LSNs and types are in every layer: there is no seam for another database. Imports
point down: ``stream``, ``pipeline_settings``, ``capture | postgres | kafka``, ``toast``, ``protocol``, ``model``.
``capture`` decides. ``postgres`` and ``kafka`` do input and output, and don't import each other. ``toast`` stores large
values. ``protocol`` converts between bytes and values. ``model`` has the shared words. ``stream`` joins the parts.
"""
