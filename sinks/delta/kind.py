"""Delta tables as a kind of sink."""

from typing import Final

from cdc.model.later import later
from sinks.delta.settings import DeltaSettings
from sinks.kind import SinkKind

_EXAMPLE: Final = """\
# [sinks.lake]
# type = "delta"
# root = "s3://bucket/lake"                # or an absolute path
# prefix = "shop"                          # first part of every directory; else the sink's name
# login = { user = "access-key-id", password_file = "/run/secrets/lake" }    # else as deltalake finds it by itself
# storage_options = { aws_region = "eu-central-1" }
# partition_by = { "public.orders" = ["region"] }    # (rebuild)
# synced_at = false                        # true: a column _synced_at, when a row was written last, for dbt (rebuild)
# purge_deleted_after_days = 0             # after which a deleted row is removed for good; 0: never; needs synced_at
# retention_hours = 24                     # replaced files are kept so long, for queries that began before
"""

KIND: Final = SinkKind(
    settings=DeltaSettings,
    open=later("sinks.delta.sink:open_delta"),
    client="deltalake",
    address_setting="root = {address}",
    schemes=("s3", "s3a", "gs", "az", "abfs", "abfss", "file", ""),
    example=_EXAMPLE,
    backups_keep="Delta: versions that the object store keeps by itself.",
)
