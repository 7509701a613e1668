"""``lockstep verify``: compares a sink with the source, the topic or another generation, on a live system, row by row.

Read it from the inside out: ``canonical`` is the form that is compared. ``sides/`` opens what rows come from.
``comparing/`` finds which keys may differ, and which of them do. ``explain`` says what else is known of a difference,
and ``repair`` mends it. ``report`` is the result. ``verify`` joins these parts, and ``command`` shows the result.

``full_comparison`` is another way, which ignores that a live system goes on changing: it compares every row of every
table under one snapshot, for the demo and the tests.
"""
