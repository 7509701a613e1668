"""Standing searches: queries over a sink's documents, and who is told of each that begins or ceases to match.

``matches`` decides what is to be told, ``topic`` is where it is told and what is known of it after a restart,
``follower`` goes along behind a sink, and ``commands`` is what people do with searches.
"""
