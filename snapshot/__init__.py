"""First copy of tables, through the same encoder and publisher as the stream: a sink can't tell the difference."""
