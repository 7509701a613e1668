"""OpenSearch as a destination."""
