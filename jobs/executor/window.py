"""Log records -> the newest record of each key, before anything is parsed. Keys change many times in a batch, and only
their newest state matters to a sink. Folding first saves parsing and writing all the others. Until then values stay in
Arrow's memory: as Python objects they would cost more than everything else."""

from collections.abc import Collection, Iterable
from operator import le
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from cdc.event_format.decode import LEFT_OUT_START, TAG_END, TAG_LABEL, TAG_START, commit_time_ms_of
from cdc.model.errors import LockstepError
from cdc.model.tag import TEXT_LENGTH
from jobs.executor.append_only import with_event_keys
from sinks.contract import TopicPartition

# pyarrow makes its compute functions at import, so their stubs lack most of them.
_compute: Any = pyarrow.compute

_LABELLED: Final = len(TAG_LABEL) + TEXT_LENGTH


class Window:
    """The newest record of each key among those added, and how far they reach in each partition. If ``folds`` is False,
    it holds all records. Those of ``append_only`` topics each get a key of their own."""

    def __init__(self, bytes_max: int, *, folds: bool = True, append_only: Collection[str] = ()) -> None:
        self._bytes_max = bytes_max
        self._folds = folds
        self._append_only = append_only
        self._batches: list[pa.RecordBatch] = []
        self._folded: pa.Table | None = None
        self._bytes = 0
        self._ends: dict[TopicPartition, tuple[int, int]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._ends

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        return {partition: offset + 1 for partition, (offset, _) in self._ends.items()}

    @property
    def commit_time_ms(self) -> int:
        """The newest of the partitions' last commit times, in milliseconds since 1970."""
        return max((commit_time_ms for _, commit_time_ms in self._ends.values()), default=0)

    def add(self, batch: pa.RecordBatch) -> bool:
        """Add records. Returns True once there are too many, even when folded. Raises as ``records``."""
        if not batch.num_rows:
            return False
        self._batches.append(batch)
        self._bytes += batch.nbytes
        self._reach(batch)
        if self._bytes < self._bytes_max:
            return False
        if not self._folds:
            return True
        # Superseded records make room. If there were few, folding again and again would gain little.
        self._bytes = self.records().nbytes
        return self._bytes > self._bytes_max // 2

    def records(self) -> pa.Table:
        """The newest records, or all, with a column ``tag`` more. Raises LockstepError for a record without a tag."""
        if self._batches:
            tables = [] if self._folded is None else [self._folded]
            tagged = with_tags(pa.Table.from_batches(self._batches))
            tables.append(with_event_keys(tagged, self._append_only) if self._append_only else tagged)
            self._batches = []
            taken = pa.concat_tables(tables)
            self._folded = newest(taken) if self._folds else taken
        assert self._folded is not None
        return self._folded

    def _reach(self, batch: pa.RecordBatch) -> None:
        topics, partitions = batch.column("topic"), batch.column("partition")
        if len(partitions.unique()) == len(topics.unique()) == 1:
            last = [batch.num_rows - 1]
        else:
            pairs = zip(topics.to_pylist(), partitions.to_pylist(), strict=True)
            last = list({partition: index for index, partition in enumerate(pairs)}.values())
        values = batch.column("value")
        for index in last:
            # For a tombstone, the commit time of the delete before it.
            value = values[index].as_py() or (values[index - 1].as_py() if index else None)
            commit_time_ms = 0 if value is None else commit_time_ms_of(value)
            offset = batch.column("offset")[index].as_py()
            self._ends[topics[index].as_py(), partitions[index].as_py()] = offset, commit_time_ms


def newest(records: pa.Table) -> pa.Table:
    """Per topic and key, the record with the greatest tag; ``records`` have the columns that ``with_tags`` returns.

    Each partition's records come in its order, and stay in it. Of equal tags the later record wins: a delete's
    tombstone over the delete event, and a re-published event over its first copy; both say the same. If a key's newest
    record says that its row is left out, the newest other one stays as well: it may be a deletion.
    """
    keys: list[Any] = records.column("key").to_pylist()
    topics = records.column("topic")
    if _compute.count_distinct(topics).as_py() > 1:
        keys = list(zip(topics.to_pylist(), keys, strict=True))
    # Tuned: a dict takes the last index of each key without running a line of Python per key.
    index_of = dict(zip(keys, range(len(keys)), strict=True))
    if len(index_of) == len(keys):
        return records
    tags: list[bytes] = records.column("tag").to_pylist()
    # The log has each key's tags in order, except for what capture publishes again after a crash or a resumed snapshot.
    if not all(map(le, tags, map(tags.__getitem__, map(index_of.__getitem__, keys)))):
        index_of = {}
        for index, (key, tag) in enumerate(zip(keys, tags, strict=True)):
            newest_index = index_of.get(key)
            if newest_index is None or tag >= tags[newest_index]:
                index_of[key] = index
    is_kept = bytearray(len(keys))
    for index in index_of.values():
        is_kept[index] = 1
    for index in _before_left_out(records, keys, tags):
        is_kept[index] = 1
    mask = pa.Array.from_buffers(pa.uint8(), len(is_kept), [None, pa.py_buffer(is_kept)])
    return records.filter(mask.cast(pa.bool_()))


def _before_left_out(records: pa.Table, keys: list[Any], tags: list[bytes]) -> Iterable[int]:
    """For each key with a left-out row, its newest other record."""
    is_left_out = _compute.starts_with(records.column("value"), pattern=LEFT_OUT_START).fill_null(False)
    if not _compute.any(is_left_out).as_py():
        return ()
    leaves_out: list[bool] = is_left_out.to_pylist()
    of_keys = {key for key, is_left in zip(keys, leaves_out, strict=True) if is_left}
    found: dict[Any, int] = {}
    for index, key in enumerate(keys):
        known = found.get(key)
        if key in of_keys and not leaves_out[index] and (known is None or tags[index] >= tags[known]):
            found[key] = index
    return found.values()


def with_tags(records: pa.Table) -> pa.Table:
    """Records with a column ``tag`` more: 28 hex digits as bytes.

    ``records`` have the columns ``value``, ``topic``, ``partition``, ``offset`` and ``tombstone_tag``, and any others.
    ``tombstone_tag`` is the tag from the header if the value is null, and ignored elsewhere. Raises LockstepError for a
    record without a tag: somebody else wrote it, and dropping it silently would hide that.
    """
    values = records.column("value")
    label = pa.scalar(TAG_LABEL, pa.binary())
    labelled = _compute.binary_slice(values, TAG_START - len(TAG_LABEL), TAG_END)
    if labelled.null_count:
        nothing = pa.scalar(b"", pa.binary())
        from_header = _compute.binary_join_element_wise(label, records.column("tombstone_tag"), nothing)
        labelled = _compute.coalesce(labelled, from_header)
    is_ours = _compute.and_(
        _compute.equal(_compute.binary_length(labelled), _LABELLED),
        _compute.starts_with(labelled, pattern=TAG_LABEL),
    ).fill_null(False)
    if not _compute.all(is_ours).as_py():
        topic, partition, offset = (
            records.column(name)[is_ours.index(False).as_py()].as_py() for name in ("topic", "partition", "offset")
        )
        raise LockstepError(
            f"record without a tag: topic {topic!r}, partition {partition}, offset {offset}",
            hint="something else writes to this topic; move it away, then rebuild the topic with a new snapshot",
        )
    return records.append_column("tag", _compute.binary_slice(labelled, len(TAG_LABEL), _LABELLED))
