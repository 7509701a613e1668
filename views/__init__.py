"""Views: queries over captured tables, kept up to date change by change.

``sql`` reads a query and returns a plan, or every reason why the query can't be maintained. ``operators`` maintain a
plan's result: they turn changed rows of tables into changed rows of the result, and remember rows in ``state``.
``view.View`` joins these. The package knows no log, sink or clock; the state's store is its only I/O.
"""
