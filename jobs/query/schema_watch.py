"""Whether the source's tables have another shape than a running job was prepared for. Most changes of a table arrive
with the first row of the new shape, and stop the batch that has it. Only ``__schema`` shows an added column, and
changes that can't disturb a destination without columns."""

from collections.abc import Collection, Mapping

from cdc.kafka.control_topics import ClientSettings, read_schema_records
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import SCHEMA, control_topic
from cdc.model.table import Table, TableName
from jobs.executor.shape_history import newest_shapes


class SchemaWatch:
    """Compares ``prepared`` with the newest shapes, which it reads only if something was written since. ``uncopied``
    tables have no shape yet."""

    def __init__(
        self,
        cluster: TopicAdmin,
        client: ClientSettings,
        pipeline: str,
        prepared: Mapping[TableName, Table],
        uncopied: Collection[TableName] = (),
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._pipeline = pipeline
        self._prepared = prepared
        self._uncopied = frozenset(uncopied)
        self._partition = (control_topic(pipeline, SCHEMA), 0)
        self._end: int | None = None

    def has_moved(self) -> bool:
        """Whether a shape has changed, or an uncopied table has one now. Raises LockstepError if the log is
        unreadable."""
        end = self._cluster.end_offsets([self._partition])[self._partition]
        if end == self._end:
            return False
        newest = newest_shapes(read_schema_records(self._client, self._pipeline))
        self._end = end
        if not self._uncopied.isdisjoint(newest):
            return True
        return any(newest.get(name, table) != table for name, table in self._prepared.items())
