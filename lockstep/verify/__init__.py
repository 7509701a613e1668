"""``lockstep verify``: a sink against the source, the topic or another generation, on a live system, row by row.

Read from the inside out: ``form`` (what is compared), ``ranges`` and ``search`` (which keys may differ), ``settle`` (which of them do),
``source_side``, ``topic_side``, ``generation_side`` and ``sink_side`` (where rows come from), ``evidence`` (what else is known of a row
that differs), ``report`` (what is told), ``verify`` (the verb), ``command`` (how it shows itself).
"""
