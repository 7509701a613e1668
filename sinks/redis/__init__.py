"""Redis and Valkey as a destination."""
