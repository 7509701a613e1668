"""Log records -> the newest record of each key, before anything is parsed.

Keys change many times in a batch, and only their newest state matters to a sink: folding first saves the parsing and the writing of
all the others. Values stay in Arrow's memory until then, since as Python objects they would cost more than all of the rest.
"""

from operator import le
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from cdc.model.errors import LockstepError
from cdc.model.tag import TEXT_LENGTH
from cdc.protocol.envelope import TAG_END, TAG_START

# Stubs of Arrow's compute functions, which are made when the module is loaded, lack most of them.
_compute: Any = pyarrow.compute

_LABEL: Final = b'","tag":"'
_LABELLED: Final = len(_LABEL) + TEXT_LENGTH


def newest(records: pa.Table) -> pa.Table:
    """Per topic and key the record with the greatest tag. ``records`` are what ``with_tags`` returns, or several of these together.

    Each partition's records stand in its order, and do so in the result. Where tags are equal the later record stays: a delete's
    tombstone rather than the delete event, and a re-published event rather than its first copy; both say the same.
    """
    keys: list[Any] = records.column("key").to_pylist()
    topics = records.column("topic")
    if _compute.count_distinct(topics).as_py() > 1:
        keys = list(zip(topics.to_pylist(), keys, strict=True))
    # Tuned: a dict takes the last place of each key without a line of Python being run for it.
    place_of = dict(zip(keys, range(len(keys)), strict=True))
    if len(place_of) == len(keys):
        return records
    tags: list[bytes] = records.column("tag").to_pylist()
    # The log has each key's tags in order, but for what capture publishes again after a crash or a resumed snapshot.
    if not all(map(le, tags, map(tags.__getitem__, map(place_of.__getitem__, keys)))):
        place_of = {}
        for place, (key, tag) in enumerate(zip(keys, tags, strict=True)):
            known = place_of.get(key)
            if known is None or tag >= tags[known]:
                place_of[key] = place
    kept = bytearray(len(keys))
    for place in place_of.values():
        kept[place] = 1
    mask = pa.Array.from_buffers(pa.uint8(), len(kept), [None, pa.py_buffer(kept)])
    return records.filter(mask.cast(pa.bool_()))


def with_tags(records: pa.Table) -> pa.Table:
    """Records with a column ``tag`` more. Columns ``value``, ``topic``, ``partition``, ``offset``, ``tombstone_tag``, and any others.

    ``tombstone_tag`` holds the tag from the header where the value is null, and is not looked at elsewhere.

    Raises LockstepError for a record without a tag: it isn't ours, and dropping it in silence would hide that.
    """
    values = records.column("value")
    label = pa.scalar(_LABEL, pa.binary())
    labelled = _compute.binary_slice(values, TAG_START - len(_LABEL), TAG_END)
    if labelled.null_count:
        nothing = pa.scalar(b"", pa.binary())
        from_header = _compute.binary_join_element_wise(label, records.column("tombstone_tag"), nothing)
        labelled = _compute.coalesce(labelled, from_header)
    is_ours = _compute.and_(
        _compute.equal(_compute.binary_length(labelled), _LABELLED),
        _compute.starts_with(labelled, pattern=_LABEL),
    ).fill_null(False)
    if not _compute.all(is_ours).as_py():
        topic, partition, offset = (
            records.column(name)[is_ours.index(False).as_py()].as_py() for name in ("topic", "partition", "offset")
        )
        raise LockstepError(
            f"record without a tag: topic {topic!r}, partition {partition}, offset {offset}",
            hint="something else writes to this topic; move it away, then rebuild the topic with a new snapshot",
        )
    return records.append_column("tag", _compute.binary_slice(labelled, len(_LABEL), _LABELLED))
