"""A DuckDB file as a warehouse."""
