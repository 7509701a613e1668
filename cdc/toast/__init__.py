"""Large values that the stream leaves out: which rows can have any, and where their last known form is stored.

PostgreSQL doesn't send a TOASTed value that an UPDATE left alone, and a partial row must never reach a topic. So the
JSON of such values is remembered per row. ``rule`` decides which rows, ``store`` keeps the values on this machine,
``catch_up`` fills the store from the topics, which hold everything. The store may be lost at any time; that costs only
time.
"""
