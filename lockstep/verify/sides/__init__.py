"""Where a comparison's rows come from: the sink, and the source, the topic or another generation."""
