"""OpenSearch as a kind of sink."""

from typing import Final

from cdc.model.later import later
from sinks.kind import SinkKind
from sinks.opensearch.settings import OpenSearchSettings

_EXAMPLE: Final = """\
# [sinks.search]
# type = "opensearch"
# urls = ["https://127.0.0.1:9200"]        # one or more nodes
# prefix = "shop"                          # first part of every index; else the sink's name
# names = { "public.orders" = "orders" }    # of a table in the indexes' names (rebuild)
# ids = { "public.orders" = "order-{id}" } # documents' ids: every key column in it (rebuild)
# routing = { "public.orders" = ["id"] }   # key columns that say on which shard (rebuild)
# fields = { "public.orders.note" = { type = "keyword" } }    # instead of the column's own mapping (rebuild)
# index_settings = { }                     # analysis and the like (rebuild)
# shards = 1                               # (rebuild)
# replicas = 1
# refresh_interval_ms = 500                # how soon a write is found
# deletes = "versioned"                    # or "marker": a hidden document remembers the delete for ever (rebuild)
# With Amazon OpenSearch Service no login: aws_region = "eu-central-1"
# timeout_s = 60.0                         # of a request
# tls = { ca_file = "/tls/ca.pem", certificate_file = "/tls/me.pem", key_file = "/tls/me.key" }
"""

KIND: Final = SinkKind(
    settings=OpenSearchSettings,
    open=later("sinks.opensearch.sink:open_opensearch"),
    client="opensearchpy",
    address_setting="urls = [{address}]",
    schemes=("http", "https"),
    example=_EXAMPLE,
    backups_keep="OpenSearch: snapshots of its indexes; nodes that are away, once their copies were put elsewhere.",
    check_new=later("sinks.opensearch.questions:check_new"),
    why_late_writes_are_unseen=later("sinks.opensearch.questions:why_late_writes_are_unseen"),
)
