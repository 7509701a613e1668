"""Where the rows of a comparison come from: the sink, and the source, the topic or another generation beside it."""
