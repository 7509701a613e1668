"""Which values of a row PostgreSQL may have moved out of line. Pure; never a wrong no, sometimes a needless yes.

**When a value is moved.** The toaster gets a new tuple that is longer than a quarter of a page (2032 bytes with pages
of 8 kB), or one with a value that is out of line already. It moves values only while the tuple, with all movable values
in line, is longer than ``toast_tuple_target``, and only values of more than 24 bytes (``MAXALIGN`` of a TOAST pointer).
So a write moves no value of a row whose longest possible tuple is within the smaller of the two limits. VACUUM FULL and
CLUSTER bring all values of a row in line and toast it again, without an event. They too move nothing of such a row, but
of any other row they may move another column than the write did. That is why all columns of a row count, or none.

**What stays moved.** A value that an UPDATE leaves alone stays where it is, however small the row becomes. So ``update
t set big = null`` leaves a second value of 500 bytes out of line. Such a value isn't sent, so the stream identifies
these: ``out_of_line`` takes them. For a row of a snapshot or a compacted topic, the past is unknown, so only the 24
bytes decide: ``suspects``. Storage PLAIN proves nothing, since values that were moved before ALTER COLUMN SET STORAGE
stay moved.

**How long a tuple can be.** Header and null bitmap, and for each column its padding and its size. Fixed-length types
have their length. For the others ``size <= weight * length + constant``, where ``length`` is that of the text or of the
JSON. Where JSON is shorter than the text, these bounds allow for it: only timestamps in arrays lose two characters of
twenty. Compression only makes values smaller.

===================  ======================  ==========================================================================
type                 weight, constant        because
===================  ======================  ==========================================================================
text-like            1, 4                    the text is the value; 4 bytes of header
bytea                1/2, 4                  two hex digits a byte
bit                  1/8, 9                  a digit a bit, a counter
numeric              1/2, 11                 2 bytes for 4 digits, begun groups on both sides of the point, long header
inet                 0, 24                   a fixed struct
ranges               0, 40 (numeric 1/2, 48)  two bounds with padding, type, flags
multiranges          4, 32                   ``[1,2),`` has 6 characters, and offset, flag and two bounds of 8 bytes
jsonb                4, 16                   an entry of 4 bytes for each value and key; the densest are ``[1]`` with
                                             20 bytes for 5 characters and ``1, `` with 12 for 3 (a numeric takes 8)
... counted          1, 16, 16 an item       items are commas and opening brackets: at most so many values, each with
                                             key and padding longer by 16 than its text
tsvector             2, 12                   ``'a':1 `` 10 for 6, every further position 2 for 2
path, polygon        3, 48                   16 for ``(0,0),``
arrays of L bytes    (L + 1/8) / 2, 72       an element has a character and a comma; null bitmap; header of 6 dimensions
... counted          0, 72, L + 1/8 an item  elements are one more than commas at most
arrays of others     from the element's      the same with its weight, its constant and its padding
===================  ======================  ==========================================================================

Nothing is known of other types (composites, users' own, xml, which drops its declaration): a row with one counts as
long. In a database with a multi-byte encoding other than UTF-8, weights double: there a character has at most 4 bytes,
and in UTF-8 the same one has at least 2.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

_POINTER_BYTES: Final = 24
"""The size of a pointer. Values up to this size are never moved: they would save nothing."""

_SURELY_LARGE: Final = 99
"""Longer texts aren't examined: it is cheaper to store a few values too many."""

_ALIGNMENTS: Final = {"c": 1, "s": 2, "i": 4, "d": 8}

_WIDE_ENCODINGS: Final = frozenset({"EUC_JP", "EUC_CN", "EUC_KR", "EUC_TW", "EUC_JIS_2004", "MULE_INTERNAL"})

_NEVER_MOVED: Final = frozenset({"int2vector", "oidvector"})
"""Built-in types of variable length whose values can't be moved."""


class _Bound(NamedTuple):
    """``size <= weight * length + constant``. If ``items`` names characters to count, also ``size <= counted_weight *
    length + per_item * (count + 1) + constant``. The header of 4 bytes is included."""

    weight: float
    constant: float
    items: bytes = b""
    counted_weight: float = 0.0
    per_item: float = 0.0

    def size(self, value: bytes) -> float:
        """The most bytes that this value can take."""
        plain = self.weight * len(value) + self.constant
        if not self.items:
            return plain
        count = sum(value.count(self.items[i : i + 1]) for i in range(len(self.items)))
        return min(plain, self.counted_weight * len(value) + self.per_item * (count + 1) + self.constant)


_BOUNDS: Final = {
    **dict.fromkeys(("text", "varchar", "bpchar", "json", "refcursor", "citext.citext"), _Bound(1, 4)),
    "bytea": _Bound(0.5, 4),
    **dict.fromkeys(("bit", "varbit"), _Bound(0.125, 9)),
    "numeric": _Bound(0.5, 11),
    **dict.fromkeys(("inet", "cidr"), _Bound(0, 24)),
    **dict.fromkeys(("int4range", "int8range", "daterange", "tsrange", "tstzrange"), _Bound(0, 40)),
    "numrange": _Bound(0.5, 48),
    **dict.fromkeys(
        ("int4multirange", "int8multirange", "datemultirange", "tsmultirange", "tstzmultirange", "nummultirange"),
        _Bound(4, 32),
    ),
    "jsonb": _Bound(4, 16, b",[{", 1, 16),
    "tsvector": _Bound(2, 12),
    **dict.fromkeys(("path", "polygon"), _Bound(3, 48)),
    **dict.fromkeys(("int2vector", "oidvector"), _Bound(2, 32)),
    **dict.fromkeys(("pg_snapshot", "txid_snapshot"), _Bound(4, 32)),
    "hstore.hstore": _Bound(1, 16),
    "ltree.ltree": _Bound(4, 16),
    "vector.vector": _Bound(2, 16),
}

_ARRAY_HEADER: Final = 72


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """The catalogue's facts about one stored column, published or not, in the order of the table.

    ``type_name`` is the type's name with domains resolved: a built-in type's own, ``extension.type`` for an
    extension's, empty for users' types. ``length`` and ``alignment`` are ``attlen`` and ``attalign``. For an array, the
    ``element_`` facts describe its elements (``typlen``, ``typalign``), and ``type_name`` isn't used.
    """

    name: str
    type_name: str
    length: int
    alignment: str
    published: bool = True
    element_name: str | None = None
    element_length: int = -1
    element_alignment: str = "d"


class ToastRule:
    """The rule of one table shape. Positions are those of the published columns, as in the stream's rows."""

    __slots__ = ("_fixed", "_limit", "_may_be_long", "bounds", "columns", "positions", "safe_bytes")

    def __init__(
        self,
        facts: Sequence[ColumnFacts],
        *,
        attributes: int,
        tuple_target: int | None = None,
        block_size: int = 8192,
        encoding: str = "UTF8",
    ) -> None:
        """``attributes`` is ``relnatts``, dropped columns included. ``tuple_target`` is the table's
        ``toast_tuple_target``, the smallest of its partitions. ``block_size`` is the server's, ``encoding`` the
        database's."""
        published = [column for column in facts if column.published]
        self.bounds = {
            position: _bound(column, encoding) for position, column in enumerate(published) if column.length < 0
        }
        self.positions = tuple(p for p in self.bounds if published[p].type_name not in _NEVER_MOVED)
        """Those of the columns whose values can be moved at all."""
        self.columns = tuple(published[p].name for p in self.positions)
        """Their names. Without any, a table needs no memory."""
        quarter = (block_size - 40) // 4 // 8 * 8
        self._limit = min(quarter, quarter if tuple_target is None else tuple_target)
        self._fixed: float = (23 + (attributes + 7) // 8 + 7) // 8 * 8
        unseen = False
        for column in facts:
            self._fixed += _ALIGNMENTS[column.alignment] - 1
            if column.length > 0:
                self._fixed += column.length
            elif not column.published:
                unseen = True
        known_bounds = {position: bound for position, bound in self.bounds.items() if bound is not None}
        constants = self._fixed + sum(bound.constant for bound in known_bounds.values())
        if unseen:  # any part of the tuple may be hidden
            self._limit = -1
        heaviest = max((bound.weight for bound in known_bounds.values()), default=0.0)
        unknown = [position for position, bound in self.bounds.items() if bound is None]
        room = self._limit - constants
        self.safe_bytes = -1 if unknown or room < 0 else int(room / heaviest) if heaviest else 1 << 62
        """A row can't be too long if its texts have at most so many bytes together; -1 if there is no such limit."""
        self._may_be_long = _generated(known_bounds, unknown, constants, self._limit)

    def out_of_line(self, values: Sequence[bytes | None], unchanged: Collection[int] = ()) -> tuple[int, ...]:
        """The positions whose values may be out of line after a write of this row; its past is known. ``values`` are
        the texts or the JSON of all published columns; ``unchanged`` are the positions left out."""
        if not self._may_be_long(values) or not self._is_long(values):
            return tuple(p for p in self.positions if p in unchanged) if unchanged else ()
        return tuple(
            p
            for p in self.positions
            if p in unchanged or ((value := values[p]) is not None and self.may_be_moved(p, value))
        )

    def suspects(self, values: Sequence[bytes | None]) -> tuple[int, ...]:
        """The positions whose values may be out of line in a row whose past is unknown."""
        return tuple(p for p in self.positions if (value := values[p]) is not None and self.may_be_moved(p, value))

    def may_be_moved(self, position: int, value: bytes) -> bool:
        """Whether a value, text or JSON, is large enough for its column to be moved at all."""
        bound = self.bounds[position]
        return bound is None or len(value) > _SURELY_LARGE or bound.size(value) > _POINTER_BYTES

    def _is_long(self, values: Sequence[bytes | None]) -> bool:
        """The exact check, which counts items."""
        size = self._fixed
        for position, bound in self.bounds.items():
            value = values[position]
            if value is not None:
                if bound is None:
                    return True
                size += bound.size(value)
        return size > self._limit


def _bound(column: ColumnFacts, encoding: str) -> _Bound | None:
    """The bound of a column of variable length; None if there is none."""
    if column.element_name is None:
        bound = _BOUNDS.get(column.type_name)
    else:
        bound = _array_bound(column.element_name, column.element_length, _ALIGNMENTS[column.element_alignment])
    if bound is not None and encoding in _WIDE_ENCODINGS:
        return bound._replace(weight=bound.weight * 2, counted_weight=bound.counted_weight * 2)
    return bound


def _array_bound(element: str, length: int, alignment: int) -> _Bound | None:
    if length > 0:
        per_item = -(-length // alignment) * alignment + 0.125
        return _Bound(per_item / 2, _ARRAY_HEADER, b",", 0, per_item)
    bound = _BOUNDS.get(element)
    if bound is None:
        return None
    per_item = bound.constant + alignment - 1 + 0.125
    return _Bound(
        max(bound.weight, (bound.weight + per_item) / 2), _ARRAY_HEADER + per_item, b",", bound.weight, per_item
    )


def _generated(
    bounds: dict[int, _Bound], unknown: Sequence[int], constants: float, limit: float
) -> Callable[[Sequence[bytes | None]], bool]:
    """A quick check whether a row may be long. Generated without a loop, since it runs for every row."""
    lines = ["def may_be_long(values):", f" size = {constants!r}"]
    lines += [f" if values[{p}] is not None: return True" for p in unknown]
    for position, bound in bounds.items():
        if bound.weight:
            factor = "" if bound.weight == 1 else f" * {float(bound.weight)!r}"
            lines += [f" value = values[{position}]", f" if value is not None: size += len(value){factor}"]
    lines.append(f" return size > {limit!r}")
    namespace: dict[str, Any] = {}
    exec("\n".join(lines), namespace)  # noqa: S102  generated above from numbers alone
    may_be_long: Callable[[Sequence[bytes | None]], bool] = namespace["may_be_long"]
    return may_be_long
