"""Where the rows of a comparison come from: the sink, and what it is compared with (source, topic, another generation)."""
