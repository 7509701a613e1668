"""What a destination may be able to do besides the contract: a protocol each, and a field of ``OpenedSink``, else None.

Whoever needs one that a destination lacks does without it, or says by the sink's name what can't be done there.
"""
