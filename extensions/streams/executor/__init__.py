"""What runs inside the tasks of stream queries. It is shipped to executors, and imports nothing that isn't."""
