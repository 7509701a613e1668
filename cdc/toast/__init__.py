"""Large values that the stream leaves out: which rows can have any, and where their last known form is kept.

PostgreSQL doesn't send a TOASTed value that an UPDATE left alone, and a partial row must never reach a topic. So the
JSON of such values is remembered per row. ``rule`` says which rows, ``store`` keeps them on this machine, ``catch_up``
fills the store from the topics, which hold all of it. The store may be lost at any time; only time is lost with it.
"""
