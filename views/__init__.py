"""Views: queries over captured tables, kept up to date change by change.

``sql`` reads a query and gives a plan, or says all that stands against keeping it. ``operators`` keep a plan's result:
changed rows of tables in, changed rows of the result out. ``state`` is where they remember rows. ``view.View`` joins
these. Nothing here knows a log, a sink or a clock: the store of the state is the only I/O.
"""
