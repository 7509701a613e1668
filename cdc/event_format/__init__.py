"""The format of events: the only code that knows their bytes. They are Debezium's envelope as JSON.

Key: the key columns in key order, ``{"id":42}``. Value::

    {"op":"u","tag":"<28 hex digits>","before":null,"after":{...},"source":{...},"ts_ms":...}

``op`` is ``r`` (snapshot), ``c``, ``u`` or ``d``; ``t`` means that a table without a key was emptied, and ``x`` that a
row is left out because it is too large for the topic. ``op`` and ``tag`` have fixed offsets, so readers compare tags
without parsing. ``ts_ms`` is the commit time, not the time of publishing: the same WAL must give the same bytes. A
tombstone follows each delete: a null value with the tag in the header ``tag``.

``encode`` writes events, ``decode`` reads them, ``column_types`` has the values of each type, and ``compiled`` chooses
the compiled encoder. Another format replaces these four, and keeps their functions. Rows stay JSON behind ``decode``:
sinks and views take them as such.
"""
