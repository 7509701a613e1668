"""Redis and Valkey as a kind of sink."""

from typing import Final

from cdc.model.later import later
from sinks.kind import SinkKind
from sinks.redis.settings import RedisSettings

_EXAMPLE: Final = """\
# [sinks.cache]
# type = "redis"
# url = "rediss://127.0.0.1:6379/0"        # redis:// without TLS
# sentinels = []                           # host:26379 of each; url then has the primary's name, as redis://shop/0
# prefix = "shop"                          # first part of every key; else the sink's name
# keys = { "public.orders" = "order:{id}" }    # of rows, after prefix and generation: every key column in it (rebuild)
# values = "json"                          # one text; "fields": a field per column (rebuild)
# sets = { "public.orders" = ["by_customer:{customer_id}"] }    # further sets of rows' keys (rebuild)
# ttl_s = { "public.orders" = 3600 }       # rows expire, for a cache (rebuild)
# mode = "materialise"                     # "invalidate": a change only removes the row (rebuild)
# tombstone_ttl_s = 86400                  # how long a delete is remembered
# max_value_bytes = 67108864               # a larger row is rejected
# tls = { ca_file = "/tls/ca.pem", certificate_file = "/tls/me.pem", key_file = "/tls/me.key" }
"""

KIND: Final = SinkKind(
    settings=RedisSettings,
    open=later("sinks.redis.sink:open_redis"),
    client="redis",
    address_setting="url = {address}",
    schemes=("redis", "rediss", "unix"),
    example=_EXAMPLE,
    backups_keep="Redis: its files (RDB, AOF) have old values until they are written anew; replicas, backups.",
)
