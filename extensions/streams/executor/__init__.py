"""The code that runs in the tasks of stream queries. It is shipped to executors, and imports only what is there."""
