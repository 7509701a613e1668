"""``lockstep verify``: a sink against the source, the topic or another generation, on a live system, row by row.

To read it from the inside out: ``canonical`` is the form that is compared. ``sides/`` opens what rows come from.
``comparing/`` finds which keys may differ, and which of them do. ``explain`` says what else is known of a difference,
and ``repair`` mends it. ``report`` is what comes out. ``verify`` puts them together, and ``command`` shows it.

``full_comparison`` is another way, without regard for a live system. It compares every row of every table under one
snapshot, as the demo and the tests do it.
"""
