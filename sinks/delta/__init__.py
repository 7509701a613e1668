"""Delta tables as a destination."""
