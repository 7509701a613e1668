"""The words of the suite: a case is data, and this module says what its parts mean."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from stack import versions

MAJORS = (*versions.POSTGRES_OLDER, versions.POSTGRES_MAJOR)

SCHEMA = "$schema"
PUBLICATION = "$publication"
PIPELINE = "$pipeline"
"""Placeholders in a case's SQL. The first is its schema, where a name has to be qualified; the second is the
publication. The third is something that no other run of the case on the same server has."""


class Way(StrEnum):
    """When the statements run: all before the handoff, all after it, or ``before`` before and ``after`` after it."""

    SNAPSHOT = "snapshot"
    STREAM = "stream"
    HANDOFF = "handoff"


class On(NamedTuple):
    """A statement on a connection of its own, by name, where a case needs transactions that overlap."""

    connection: str
    sql: str


Step = str | On
"""SQL, run in autocommit with the case's schema first on the search path; a text of several is one transaction."""


_PLAIN = str.maketrans("-/", "__")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Tables, what happens to them, and what the topics must hold in the end.

    Every case has its own schemas, one for each way it is run. It must always end with topics that fold to exactly the
    rows of the source; ``visible`` narrows those to what is published. The other expectations come on top of that.
    """

    id: str
    about: str
    """In a few words, for the table of results."""
    setup: tuple[Step, ...]
    """Before capture starts, whatever the way."""
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    later: tuple[Step, ...] = ()
    """Once capture has had the time to find what the stream doesn't show (see ``unseen``)."""
    tables: tuple[str, ...] = ("t",)
    """The captured tables; any other table in the schema must get no topic."""
    ways: tuple[Way, ...] = tuple(Way)
    since: int = MAJORS[0]
    """The first major version that knows what the case is about."""

    expect: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Query over the folded topics, as tables of the same names -> its only row."""
    transactions: tuple[tuple[str, ...], ...] = ()
    """What the stream must consist of when all statements come after the handoff. There is one tuple for each
    transaction, and in it ``table op key...`` for each event. Tombstones are checked
    for every case and left out here."""
    stops: str = ""
    """Capture must refuse or stop with a message that this pattern is found in; nothing is compared then."""

    visible: Mapping[str, str] = field(default_factory=dict)
    """Table -> condition of the rows that are published."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Table -> the columns that are published, where not all are."""
    published: tuple[str, ...] = ()
    """What the publication consists of (``table $schema.t (a)``), where capture shouldn't create it itself."""
    publication_with: str = ""
    """The publication's ``with (...)``, for one that isn't created by capture."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Table -> TOML of its ``source.options``."""
    source: str = ""
    """More TOML for the section ``source``."""
    messages: tuple[tuple[str, str], ...] = ()
    """Prefix and content of the logical messages that are published, in order."""
    unseen: bool = False
    """Rows change without an event. Capture finds that out; until then it may update keys that it doesn't know."""
    restarts: bool = False
    """Capture takes few events at once, and is stopped and started again after each commit to Kafka."""

    def schema(self, way: Way) -> str:
        return f"{way}_{self.id.lower().translate(_PLAIN)}"
