"""``lockstep rejections list, show, discard``: events that a sink refused for good, with its reasons.

Keys are shown, other values of a row only where they are asked for by name.
"""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cdc.kafka.topic_names import table_topic
from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.table import TableName
from jobs.dead_letters.limit import count_kinds, in_words, kind_of
from jobs.dead_letters.record import DeadLetter, UnreadableDeadLetter, by_row
from jobs.dead_letters.topic import DeadLetterTopic
from lockstep.config import Config
from lockstep.console import EXIT_FAILED

_POSITION: Final = re.compile(r"(?:(?P<where>.+):)?(?P<partition>\d+):(?P<offset>\d+)")
_KEY_CHARACTERS_SHOWN: Final = 60
_AGES: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


@dataclass(frozen=True, slots=True)
class Rejection:
    """An open rejection. ``table`` is None when its topic has no captured table. ``void`` are the row's older ones."""

    letter: DeadLetter
    table: TableName | None
    void: tuple[DeadLetter, ...] = ()

    @property
    def where(self) -> str:
        return self.letter.position.topic if self.table is None else str(self.table)

    @property
    def position(self) -> str:
        return f"{self.letter.position.partition}:{self.letter.position.offset}"

    @property
    def key(self) -> str:
        return self.letter.key.decode()

    @property
    def record_keys(self) -> list[bytes]:
        """What has to be removed for the rejection to be closed."""
        return [letter.record_key for letter in (*self.void, self.letter)]

    def to_json(self) -> dict[str, Any]:
        letter = self.letter
        return {
            "sink": letter.sink,
            "generation": letter.generation,
            "table": None if self.table is None else str(self.table),
            "topic": letter.position.topic,
            "partition": letter.position.partition,
            "offset": letter.position.offset,
            "key": orjson.loads(letter.key),
            "tag": letter.tag,
            "reason": letter.reason,
            "rejected_at_ms": letter.rejected_at_ms,
        }


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rejections of a sink are meant; what isn't given excludes none. ``reason`` is a part of one or its kind."""

    tables: tuple[str, ...] = ()
    generation: int | None = None
    keys: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def is_unlimited(self) -> bool:
        return self == Selection()

    def check(self) -> None:
        """Raise ConfigurationError for what can't be a table, a key or a position."""
        for text in self.tables:
            try:
                TableName.parse(text)
            except ValueError as error:
                raise ConfigurationError(f"--table: {error}") from None
        for text in self.keys:
            if _is_object(text) and _canonical(text) is None:
                raise ConfigurationError("a key begins with { and isn't a JSON object", hint='for example {"id":42}')

    def takes(self, rejection: Rejection, pipeline: str) -> bool:
        letter = rejection.letter
        topics = {table_topic(pipeline, TableName.parse(text)) for text in self.tables}
        return (
            (not topics or letter.position.topic in topics)
            and self.generation in (None, letter.generation)
            and (not self.keys or any(is_called(rejection, text) for text in self.keys))
            and (self.reason is None or _has_reason(letter.reason, self.reason))
        )


def selection_of(
    *,
    tables: Sequence[str] | None,
    generation: int | None,
    keys: Sequence[str] | None,
    reason: str | None,
    everything: bool,
) -> Selection:
    """The selection of a command that changes something.

    Raises ConfigurationError when nothing is selected, or two exclusive things are.
    """
    if everything and (keys or reason is not None):
        raise ConfigurationError("--all excludes --key and --reason")
    if not (everything or keys or reason is not None):
        raise ConfigurationError("say which rejections: --key, --reason or --all")
    return Selection(tuple(tables or ()), generation, tuple(keys or ()), reason)


def is_called(rejection: Rejection, text: str) -> bool:
    """Whether a text names a rejection: by its key as JSON, by its key's one value, or by its position in the log.

    A position is ``[topic or table:]partition:offset``.
    """
    letter = rejection.letter
    if _is_object(text):
        return _canonical(letter.key) == _canonical(text)
    values = list(orjson.loads(letter.key).values())
    if len(values) == 1 and text in (values[0], orjson.dumps(values[0]).decode()):
        return True
    found = _POSITION.fullmatch(text)
    if found is None or rejection.position != f"{int(found['partition'])}:{int(found['offset'])}":
        return False
    return found["where"] in (None, letter.position.topic, rejection.where)


class RejectionBook:
    """The open rejections of a pipeline, as they are when asked."""

    def __init__(self, config: Config) -> None:
        self._pipeline = config.pipeline.name
        self._tables = {topic: name for name, topic in config.topics().items()}
        self.topic = DeadLetterTopic(config.kafka.client(), self._pipeline)

    def read(
        self, sink: str | None, selection: Selection = Selection()
    ) -> tuple[list[Rejection], list[UnreadableDeadLetter]]:
        """The rejections that are meant, and all letters that can't be read. Raises ConfigurationError, Unavailable."""
        selection.check()
        letters, unreadable = self.topic.read()
        found = [
            Rejection(of_row[-1], self._tables.get(of_row[-1].position.topic), tuple(of_row[:-1]))
            for of_row in by_row(letters)
        ]
        chosen = [one for one in found if sink in (None, one.letter.sink) and selection.takes(one, self._pipeline)]
        return chosen, [letter for letter in unreadable if sink is None or letter.sink in (None, sink)]

    def one(self, sink: str, selection: Selection) -> Rejection:
        """The one that is meant. Raises LockstepError when there is none, or more than one."""
        found, _ = self.read(sink, selection)
        if not found:
            raise none_of_that(sink)
        if len(found) > 1:
            raise LockstepError(
                f"sink {sink!r} has {len(found)} open rejections of that key or position: "
                + ", ".join(f"generation {one.letter.generation} {one.where}:{one.position}" for one in found),
                hint="say which with --generation, --table or its position",
            )
        return found[0]

    def value(self, rejection: Rejection) -> bytes | None:
        """The rejected event's value, None for a tombstone. Raises LockstepError when it was closed in the meantime."""
        for _, value in self.topic.values([rejection.letter]):
            return value
        raise LockstepError(
            "the rejection was closed meanwhile", hint="a newer version of its row got through, or it was retried"
        )

    def close(self, rejections: Sequence[Rejection], unreadable: Sequence[UnreadableDeadLetter] = ()) -> None:
        """Remove their dead letters. One that is closed already, or was rejected in a newer version, stays as it is."""
        keys = [key for one in rejections for key in one.record_keys] + [letter.record_key for letter in unreadable]
        self.topic.send((key, None) for key in keys)


def discard(
    config: Config,
    sink: str,
    selection: Selection,
    *,
    agreed: Callable[[str], bool],
    say: Callable[[str], None],
) -> int:
    """Close what is meant once that is agreed to; returns the exit code. The sink needn't exist or be configured.

    Letters that can't be read go only with all of the sink's.
    """
    book = RejectionBook(config)
    found, unreadable = book.read(sink, selection)
    lost = [letter for letter in unreadable if letter.sink == sink] if selection.is_unlimited else []
    if not found and not lost:
        if selection.keys:
            raise none_of_that(sink)
        say(f"no such rejections of {sink}")
        return 0
    what = f"{counted(len(found), 'rejection')} of {sink}"
    if found:
        what += f" ({in_words(one.letter.reason for one in found)})"
    if lost:
        what += f" and {counted(len(lost), 'record')} that can't be read"
    if not agreed(f"discard {what}? Their rows stay as they are in the sink until they are written again"):
        say("nothing was discarded")
        return EXIT_FAILED
    book.close(found, lost)
    say(f"discarded {what}")
    return 0


def none_of_that(sink: str) -> LockstepError:
    return LockstepError(
        f"sink {sink!r} has no open rejection of that key or position",
        hint=f"`lockstep rejections list {sink}` shows those there are; one is closed by a newer version of its row",
    )


def open_rejections(config: Config) -> list[dict[str, Any]]:
    """The open rejections, oldest first; one entry per sink, generation and row. Raises Unavailable."""
    return [one.to_json() for one in RejectionBook(config).read(None)[0]]


def rejections_json(found: Sequence[Rejection], unreadable: Sequence[UnreadableDeadLetter]) -> dict[str, Any]:
    """For programs."""
    return {
        "rejections": [one.to_json() for one in found],
        "reasons": [
            {"sink": sink, "generation": generation, "reason": kind, "count": count}
            for (sink, generation), of_generation in _by_generation(found).items()
            for kind, count in count_kinds(one.letter.reason for one in of_generation)
        ],
        "unreadable": [{"sink": letter.sink, "offset": letter.place, "why": letter.why} for letter in unreadable],
    }


def rejections_table(found: Sequence[Rejection], now_ms: int) -> Group:
    """For people: each of them, then how many there are of each kind."""
    table = Table()
    for heading in ("sink", "generation", "table", "key", "tag", "position", "reason", "age"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("generation", "position", "age"))
    for one in found:
        letter = one.letter
        age = readable_age((now_ms - letter.rejected_at_ms) / 1000)
        table.add_row(
            *_plain(letter.sink, letter.generation, one.where, cut(one.key)),
            *_plain(letter.tag, one.position, letter.reason, age),
        )
    counts = Table()
    for heading in ("sink", "generation", "count", "reason"):
        counts.add_column(heading, overflow="fold", no_wrap=heading in ("generation", "count"))
    for (sink, generation), of_generation in _by_generation(found).items():
        for kind, count in count_kinds(one.letter.reason for one in of_generation):
            counts.add_row(*_plain(sink, generation, f"{count:,}", kind))
    return Group(table, counts)


def unreadable_text(unreadable: Sequence[UnreadableDeadLetter]) -> str:
    """A sentence about letters that this version can't read, with the way out."""
    sinks = sorted({letter.sink for letter in unreadable if letter.sink is not None})
    text = (
        f"{counted(len(unreadable), 'record')} of the dead-letter topic can't be read"
        f" (offset {unreadable[0].place}: {unreadable[0].why}):"
        " another version of Lockstep wrote them, or somebody else"
    )
    if sinks:
        text += f"; `lockstep rejections discard {sinks[0]} --all` removes those of sink {sinks[0]}"
    return text


def cut(key: str) -> str:
    """A key for a table's cell. Some are so long that they are the very reason."""
    return key if len(key) <= _KEY_CHARACTERS_SHOWN else f"{key[:_KEY_CHARACTERS_SHOWN]}..."


def counted(number: int, noun: str) -> str:
    """``1 record``, ``2 records``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def readable_age(seconds: float) -> str:
    """The largest unit that fits."""
    for size, unit in _AGES:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _by_generation(found: Iterable[Rejection]) -> dict[tuple[str, int], list[Rejection]]:
    grouped: dict[tuple[str, int], list[Rejection]] = {}
    for one in found:
        grouped.setdefault((one.letter.sink, one.letter.generation), []).append(one)
    return grouped


def _plain(*cells: object) -> list[Text]:
    """Cells whose square brackets aren't taken for Rich's markup."""
    return [Text(str(cell)) for cell in cells]


def _has_reason(reason: str, part: str) -> bool:
    return part.lower() in reason.lower() or part.lower() in kind_of(reason).lower()


def _is_object(text: str) -> bool:
    return text.lstrip().startswith("{")


def _canonical(key: str | bytes) -> bytes | None:
    """A JSON object whatever its order and spaces; None for anything else."""
    try:
        parsed = orjson.loads(key)
    except orjson.JSONDecodeError:
        return None
    return orjson.dumps(parsed, option=orjson.OPT_SORT_KEYS) if isinstance(parsed, dict) else None
