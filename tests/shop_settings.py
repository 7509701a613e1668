"""The beginning of a configuration whose servers nobody asks: a shop with one table. Sinks and more come behind it."""

SHOP = """
[pipeline]
name = "shop"
[source]
dsn = "host=db dbname=shop user=me"
tables = ["public.orders"]
[kafka]
bootstrap_servers = "127.0.0.1:9092"
"""
