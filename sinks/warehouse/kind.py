"""A SQL warehouse as a kind of sink."""

from typing import Final

from cdc.model.later import later
from sinks.kind import SinkKind
from sinks.warehouse.settings import WarehouseSettings

_EXAMPLE: Final = """\
# [sinks.warehouse]
# type = "warehouse"
# url = "postgresql+psycopg://lockstep@127.0.0.1:5432/warehouse"    # or a file: "duckdb:////var/lib/shop/dwh.duckdb"
# schema = "shop"                          # where the views are; else the sink's name
# names = { "public.orders" = "orders" }    # of a table there (rebuild)
# history = ["public.orders"]              # every version of a row beside the newest; true: of all tables (rebuild)
# indexes = { "public.orders" = [{ columns = ["note"] }] }    # of a table there, besides the key's
# purge_deleted_after_days = 0             # after which a deleted row is removed for good; 0: never; needs synced_at
# keep_history_days = 0                    # how far back a history goes; 0: as far as it has versions
# synced_at = false                        # true: a column _synced_at, when a row was written last, for dbt (rebuild)
# schema_changes = "stop"                  # "follow": columns are renamed and dropped as at the source
# lock_timeout_s = 5.0                     # then the batch is tried again later
# tls = { ca_file = "/tls/ca.pem", certificate_file = "/tls/me.pem", key_file = "/tls/me.key" }
"""

KIND: Final = SinkKind(
    settings=WarehouseSettings,
    open=later("sinks.warehouse.sink:open_warehouse"),
    client="sqlalchemy",
    address_setting="url = {address}",
    schemes=("postgresql", "postgresql+psycopg", "duckdb"),
    example=_EXAMPLE,
    backups_keep="the warehouse: dead rows until VACUUM, free blocks of a DuckDB file, WAL, backups.",
    libpq=later("sinks.warehouse.postgres.connection:libpq_parts"),
)
