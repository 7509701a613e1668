"""Standing searches: queries over a sink's documents. Each document that begins or ceases to match is reported.
``matches`` decides what to report. ``topic`` is the topic of the reports, which are read again after a restart.
``follower`` follows a sink, and ``commands`` are the commands.
"""
