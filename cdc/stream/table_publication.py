"""How captured tables are published: topics, encoders, and what the catalogue says of keys and large values."""

from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import psycopg

from cdc.capture.published_table import PublishedTable
from cdc.event_format.compiled import RowEncoding
from cdc.event_format.encode import TableEncoder
from cdc.kafka.topic_names import table_topic
from cdc.model.table import ReplicaIdentity, Table
from cdc.pipeline_settings import Pipeline
from cdc.postgres.catalogue import keys_can_swap
from cdc.postgres.column_storage import has_lesser_partitions, load_rule
from cdc.stream.row_encoding import chosen_row_encoding


@dataclass(frozen=True, slots=True)
class PublishedTables:
    """The tables of one database, read over ``sql``."""

    pipeline: Pipeline
    sql: psycopg.Connection[Any]
    database: str
    encoding: RowEncoding = field(default_factory=chosen_row_encoding)
    _version: str = field(default_factory=lambda: version("lockstep"), init=False)  # reading it opens files

    def of(self, table: Table) -> PublishedTable:
        rule = None
        if table.key and (table.replica_identity is not ReplicaIdentity.FULL or has_lesser_partitions(self.sql, table)):
            rule = load_rule(self.sql, table)
        encoder = self._encoder(table)
        return PublishedTable(
            table_topic(self.pipeline.name, table.name),
            encoder,
            keys_can_swap=keys_can_swap(self.sql, table),
            toast=rule if rule is not None and rule.positions else None,
            kernel=self.encoding.kernel(encoder),
        )

    def only_counted(self, table: Table) -> PublishedTable:
        """A table of this shape whose changes are counted but not published. Does no I/O."""
        return PublishedTable(table_topic(self.pipeline.name, table.name), self._encoder(table))

    def _encoder(self, table: Table) -> TableEncoder:
        return TableEncoder(table, server=self.pipeline.name, database=self.database, version=self._version)
