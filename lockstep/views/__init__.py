"""What people learn of views: whether a query can be kept, how, and what it costs."""
