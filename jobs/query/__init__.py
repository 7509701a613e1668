"""One Structured Streaming query, on the driver: where it starts, what it does around each batch, and how far it is."""
