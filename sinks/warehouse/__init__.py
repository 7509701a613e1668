"""A SQL warehouse as a destination."""
