"""Names of a sink's indexes and aliases (pure). See ``docs/sinks/opensearch.md``."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cdc.model.errors import LockstepError
from cdc.model.table import TableName

PREFIX: Final = re.compile(r"[a-z0-9][a-z0-9_-]*")
BOOKKEEPING: Final = "lockstep_bookkeeping"
PERCOLATOR: Final = "lockstep_searches"

_INDEX_NAME_BYTES_MAX: Final = 255
_FENCE_DIGITS: Final = 16
_GENERATION_INDEX: Final = re.compile(r"(?P<alias>.+)_g(?P<generation>\d+)")
# A table named orders_g1 must not be taken for generation 1 of orders.
_LIKE_A_GENERATION: Final = re.compile(r"_(?=g\d+$)")
_PLAIN_NAME_BYTES: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
# No dot: a table's default name has one between schema and table, so the two never clash.
_CHOSEN: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,199}")


def name_problems(names: Mapping[str, str]) -> list[str]:
    problems, table_of = [], dict[str, str]()
    for text, name in names.items():
        if not _CHOSEN.fullmatch(name):
            problems.append(
                f"{name!r} for {text}: lower-case letters, digits, '_' and '-' make a name, letter or digit first"
            )
        elif _LIKE_A_GENERATION.search(name) or name == BOOKKEEPING:
            problems.append(f"{name!r} for {text}: Lockstep calls indexes of its own so")
        elif name in table_of:
            problems.append(f"{table_of[name]} and {text} both have the name {name!r}")
        table_of.setdefault(name, text)
    return problems


def alias_name(
    prefix: str, name: TableName, names: Mapping[TableName, str] | None = None, *, is_fenced: bool = False
) -> str:
    """The name that readers search, unique per table. ``is_fenced``: with room for a fence. Raises LockstepError."""
    chosen = None if names is None else names.get(name)
    if chosen is None:
        table = _LIKE_A_GENERATION.sub("~5f", _escaped(name.name))
        chosen = f"{_escaped(name.schema)}.{table}"
    alias = f"{prefix}.{chosen}"
    if len(alias) > _INDEX_NAME_BYTES_MAX - len("_g0000000000_W") - _FENCE_DIGITS * is_fenced:
        raise LockstepError(
            f"table {name}: its index would have a name longer than OpenSearch allows",
            hint="give it another one in names of this sink, or leave it out of its tables",
        )
    return alias


def writer_alias(index: str, fence: int) -> str:
    """The alias through which the writer with this fence writes. All writers without a fence share one."""
    return f"{index}_W{fence or ''}"


def fence_of(index: str, alias: str) -> int:
    """The fence of the writer to which this alias of an index belongs; 0 if it is no writer's."""
    begin = f"{index}_W"
    text = alias.removeprefix(begin)
    return int(text) if alias.startswith(begin) and text.isdecimal() else 0


def _escaped(part: str) -> str:
    # OpenSearch allows only lower case. "~" is legal in index names, and needs no escaping in a URL.
    return "".join(chr(byte) if byte in _PLAIN_NAME_BYTES else f"~{byte:02x}" for byte in part.encode())


@dataclass(frozen=True, slots=True)
class OwnIndex:
    """An index of ours, for one table in one generation. ``alias`` is the table's reading alias, wherever it points."""

    name: str
    alias: str
    generation: int
    is_live: bool


def own_indexes(aliases: Mapping[str, Iterable[str]]) -> Iterator[OwnIndex]:
    """Our indexes among these, which are given with their aliases. An index without a writing alias isn't ours."""
    for name, held in aliases.items():
        match = _GENERATION_INDEX.fullmatch(name)
        if match is not None and f"{name}_W" in held:
            yield OwnIndex(name, match["alias"], int(match["generation"]), match["alias"] in held)
