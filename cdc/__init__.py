"""Capture: PostgreSQL's write-ahead log becomes ordered, keyed change events on compacted Kafka topics.

The parts depend on each other in this order: ``capture | postgres | kafka`` > ``settings`` > ``protocol`` > ``model``.
``capture`` decides, ``postgres`` and ``kafka`` do input and output and don't know each other, ``protocol`` turns bytes
into values and back, ``model`` holds the words that everyone uses.
"""
