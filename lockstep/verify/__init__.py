"""``lockstep verify``: a sink against the source, the topic or another generation, on a live system, row by row.

To read it from the inside out: ``canonical`` (the form that is compared), ``sides/`` (where rows come from, and what
opens them), ``comparing/`` (which keys may differ, which of them do), ``explain`` and ``repair`` (what else is known
of a difference, and how it goes), ``report`` (what comes out), ``verify`` (the verb), ``command`` (how it shows
itself).

``full_comparison`` is another way, without regard for a live system: every row of every table under one snapshot, as
the demo and the tests do it.
"""
