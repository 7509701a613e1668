"""What a destination may be able to do besides the contract: one protocol each, and a field of ``OpenedSink`` or None.

A caller either does without a missing capability, or reports by the sink's name what can't be done there.
"""
