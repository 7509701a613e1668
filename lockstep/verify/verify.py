"""``lockstep verify SINK``: compares, tells what differs, and with ``repair`` has just that published again."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from cdc.kafka.control_topics import read_schema_records
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.model.table import Table, TableName
from jobs.executor.shape_history import TableHistory, histories, newest_shapes
from jobs.spark.computed_columns import opened_row_computer
from lockstep.config import Config
from lockstep.verify.canonical import Key, differing_columns, parse_keys
from lockstep.verify.comparing.recheck import ROUNDS_MAX, Finding, Settled, settle, strays
from lockstep.verify.comparing.search import Candidates, Search
from lockstep.verify.explain import rejected, topic_tags
from lockstep.verify.report import Difference, Kind, TableReport, VerifyReport, rows_text
from lockstep.verify.sides.expected import Expected
from lockstep.verify.sides.generation import GenerationSide
from lockstep.verify.sides.sink import Copy, SinkSide
from lockstep.verify.sides.sink_view import Deriver, View
from lockstep.verify.sides.source import Load, SourceSide
from lockstep.verify.sides.topic import TopicSide
from lockstep.verify.waiting import Applied, Mark, Patience, Stalled
from sinks.contract import OpenedSink
from sinks.registry import SinkSettings, open_sink, projection_of
from sinks.wrappers.projection import parse_column

SOURCE: Final = "source"
TOPIC: Final = "topic"

_ASK_AGAIN_S: Final = 10.0
"""A repair that the capture of a moment ago has seen but not done is forgotten when that ends, so it is asked for again."""

_TRIES_MAX: Final = 8
_TRY_AGAIN_S: Final = 1.0

_SECOND_COPY: Final = "a second copy of the row"
_MISPLACED: Final = "stored where its key isn't looked for"


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What to compare, and how much it may cost.

    ``tables`` empty: all of the sink's. ``keys``: JSON texts of keys of the one table chosen, which alone are looked at. ``against``:
    ``source``, ``topic`` or a generation's number. ``generation`` None: the live one. ``settings`` are those that the generation was
    built with, ``other_settings`` those of the one that it is compared with; None: those of the configuration.

    At most ``keys_max`` keys are held in memory. ``differences_max`` ends the search in a table that differs everywhere.
    """

    sink: str
    tables: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    repair: bool = False
    against: str = SOURCE
    generation: int | None = None
    settings: SinkSettings | None = None
    other_settings: SinkSettings | None = None
    load: Load = field(default_factory=Load)
    keys_max: int = 250_000
    differences_max: int = 10_000
    rounds_max: int = ROUNDS_MAX
    stall_s: float = 60.0
    repair_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Step:
    """What is being done to which table. ``count`` are the rows read so far, or the keys in hand."""

    table: TableName
    what: str
    count: int


def verify(
    config: Config,
    options: VerifyOptions,
    *,
    say: Callable[[str], None],
    progress: Callable[[Step], None],
    stopping: Callable[[], bool],
) -> VerifyReport:
    """Compare a sink's generation, on a live system. Changes nothing unless ``options.repair``.

    Raises ConfigurationError for options that don't fit the configuration, LockstepError when nothing is applied or when it is
    stopped, Unavailable when a server can't be reached.
    """
    settings = options.settings or _settings(config, options.sink)
    names = _table_names(config, options, settings)
    patience = Patience(stopping)
    with ExitStack() as closing:
        run = _Verification(config, options, settings, names, patience, closing, say=say, progress=progress)
        return run.report()


class _Verification:
    """One run. Everything that it opens is closed by ``closing``."""

    def __init__(
        self,
        config: Config,
        options: VerifyOptions,
        settings: SinkSettings,
        names: Sequence[TableName],
        patience: Patience,
        closing: ExitStack,
        *,
        say: Callable[[str], None],
        progress: Callable[[Step], None],
    ) -> None:
        self._config = config
        self._options = options
        self._settings = settings
        self._names = names
        self._patience = patience
        self._closing = closing
        self._say = say
        self._progress = progress
        self._client = config.kafka.client()
        self._cluster = TopicAdmin(self._client)
        self._generation = self._live_generation() if options.generation is None else options.generation
        opened = self._open_existing(settings, self._generation)
        self._sink = SinkSide(opened.sink, patience)
        self._applied = self._applied_of(opened, self._generation)
        self._view = View(projection_of(settings), self._open_deriver)
        self._shapes: Mapping[TableName, Table] = {}
        self._source = SourceSide(
            config.source,
            names=names,
            publication=config.publication,
            load=options.load,
            patience=patience,
            view=self._view,
        )
        closing.callback(self._source.close)
        self._histories: Mapping[TableName, TableHistory] = {}

    def report(self) -> VerifyReport:
        """All tables, one after the other."""
        shapes = self._read_shapes()
        expected, tables, left_out = self._expected(shapes)
        mark = expected.mark() if expected is self._source else Mark(offsets=self._log_ends())
        # Before anything is read: a sink that is far behind would differ everywhere.
        self._applied.wait(mark)
        found = []
        for table in tables:
            one = replace(self._patiently(table, expected), left_out=left_out[table.name])
            if self._options.repair and one.differences:
                try:
                    one = self._repair(table, expected, one)
                except Stalled as error:  # what was found is to be told all the same
                    self._say(f"nothing was repaired: {error}")
            found.append(self._explain(table, one))
        return VerifyReport(self._options.sink, self._generation, expected.name, mark.lsn, tuple(found))

    # What is compared.

    def _read_shapes(self) -> dict[TableName, Table]:
        """The newest shapes that the log knows, with the earlier ones in ``_histories``."""
        records = read_schema_records(self._client, self._config.pipeline.name)
        shapes = newest_shapes(records)
        missing = [name for name in self._names if name not in shapes]
        if missing:
            raise LockstepError(
                f"table {missing[0]} isn't in the log of pipeline {self._config.pipeline.name!r} yet",
                hint="start `lockstep capture`, and verify when it has copied the table",
            )
        self._histories = histories(records)
        self._shapes = {name: shapes[name] for name in self._names}
        return dict(self._shapes)

    def _open_deriver(self) -> Deriver:
        self._say("starting Spark: this sink's settings have expressions, which it evaluates")
        return self._closing.enter_context(
            opened_row_computer(self._config.spark, self._settings.expressions(), self._shapes)
        )

    def _expected(
        self, shapes: Mapping[TableName, Table]
    ) -> tuple[Expected, list[Table], dict[TableName, tuple[tuple[str, str], ...]]]:
        """The other side, and each table with the columns that are compared, and those that aren't."""
        against = self._options.against
        expected: Expected
        origins = shapes
        theirs = self._settings
        if against == SOURCE:
            expected = self._source
            origins = self._source.tables()
            gone = [name for name in self._names if name not in origins]
            if gone:
                raise LockstepError(
                    f"table {gone[0]} isn't in the source any more",
                    hint="compare the other tables with --table, or with --against topic",
                )
            for name in self._names:
                if self._view.evaluates(name) and not has_all_columns(origins[name], shapes[name]):
                    raise LockstepError(
                        f"table {name} has another shape than the log knows, by which this sink's expressions are evaluated",
                        hint="compare again once a row of it was written, or with --against topic",
                    )
        elif against == TOPIC:
            expected = self._topic_side()
        else:
            number = _generation_number(against)
            settings = self._options.other_settings or self._settings
            theirs = settings
            opened = self._open_existing(settings, number)
            expected = GenerationSide(
                number, SinkSide(opened.sink, self._patience), self._applied_of(opened, number), self._log_ends
            )
        tables, left_out = [], {}
        for name in self._names:
            computed = self._view.computed(name)
            compared, reasons = compared_columns(
                replace(origins[name], columns=(*origins[name].columns, *computed)),
                replace(shapes[name], columns=(*shapes[name].columns, *computed)),
                _excluded(self._settings, name),
                _excluded(theirs, name),
                against=expected.name,
            )
            otherwise = made_otherwise(self._settings, theirs, name)
            shown = self._view.table(origins[name])
            tables.append(
                replace(shown, columns=tuple(shown.column(name) for name in compared if name not in otherwise))
            )
            left_out[name] = (
                *reasons,
                *((column, f"{expected.name} was built with another mask or expression of it") for column in otherwise),
            )
        return expected, tables, left_out

    def _log_ends(self) -> Mapping[tuple[str, int], int]:
        topics = self._config.topics()
        counts = self._cluster.partition_counts()
        partitions = [(topics[name], p) for name in self._names for p in range(counts.get(topics[name], 0))]
        return self._cluster.end_offsets(partitions, while_waiting=self._patience.check)

    # Comparing.

    def _patiently(self, table: Table, expected: Expected) -> TableReport:
        """Compare a table, from its beginning again when a server has gone away meanwhile and come back."""
        keys = parse_keys(table, self._options.keys)
        for tries in count(1):
            try:
                return self._compare(table, expected, keys) if keys else self._compare_all(table, expected)
            except Unavailable as error:
                if tries == _TRIES_MAX:
                    raise
                self._say(f"{error.message}: comparing {table.name} from its beginning again")
                self._patience.sleep(_TRY_AGAIN_S * tries)
        raise AssertionError("it counts on")

    def _compare_all(self, table: Table, expected: Expected) -> TableReport:
        """Every row of a table."""
        options = self._options
        search = Search(
            table,
            expected,
            self._sink,
            keys_max=options.keys_max,
            tell=lambda what, count: self._progress(Step(table.name, what, count)),
        )
        differences: list[Difference] = []
        unsettled: list[Key] = []
        is_complete = True
        for candidates in search.candidates():
            is_complete = is_complete and candidates.is_complete
            settled = self._settle(table, candidates.shown, expected)
            differences += self._differences(table, settled)
            differences += self._strays(table, candidates, settled)
            unsettled += settled.unsettled
            if len(differences) >= options.differences_max:
                is_complete = False
                break
        counts = search.counts
        return TableReport(
            table.name,
            counts.expected_rows,
            counts.sink_rows,
            counts.ranges,
            counts.differing,
            differences=_ordered(differences),
            unsettled=tuple(sorted(unsettled)),
            is_complete=is_complete,
        )

    def _compare(self, table: Table, expected: Expected, keys: Sequence[Key]) -> TableReport:
        """Some rows of a table."""
        settled = self._settle(table, keys, expected)
        second, _ = strays({}, (), settled)
        held = expected.versions(table, keys)
        absent = [key for key, copies in settled.copies.items() if not copies and key not in held]
        return TableReport(
            table.name,
            keys=len(keys),
            absent=tuple(sorted(absent)),
            differences=_ordered([*self._differences(table, settled), *_stray_differences(second, _SECOND_COPY)]),
            unsettled=tuple(sorted(settled.unsettled)),
        )

    def _settle(self, table: Table, keys: Iterable[Key], expected: Expected) -> Settled:
        chosen = list(keys)
        self._progress(Step(table.name, "keys that may differ", len(chosen)))
        settled = self._settle_against(expected, table, chosen)
        if settled.unsettled and expected is self._source:
            # Rows that are written all the time: the source shows one of their versions now and then, the log has every one.
            self._progress(
                Step(table.name, "keys that change at every look, compared with the log", len(settled.unsettled))
            )
            by_log = self._settle_against(self._topic_side(), table, settled.unsettled)
            settled = Settled(settled.copies | by_log.copies, settled.different | by_log.different, by_log.unsettled)
        return settled

    def _settle_against(self, expected: Expected, table: Table, keys: Sequence[Key]) -> Settled:
        return settle(
            table,
            keys,
            expected=expected,
            sink=self._sink,
            applied=self._applied,
            patience=self._patience,
            rounds_max=self._options.rounds_max,
        )

    def _topic_side(self) -> TopicSide:
        return TopicSide(
            self._client,
            self._config.topics(),
            self._histories,
            keys_max=self._options.keys_max,
            patience=self._patience,
            view=self._view,
        )

    def _differences(self, table: Table, settled: Settled) -> list[Difference]:
        found = [_difference(table, key, finding) for key, finding in settled.different.items()]
        theirs = self._options.other_settings or self._settings
        rightly = {Kind.MISSING: self._settings.may_lack_rows(table.name)}
        # Only another generation of the sink may lack rows that are here; source and topic have them all.
        rightly[Kind.EXTRA] = theirs.may_lack_rows(table.name) and self._options.against not in (SOURCE, TOPIC)
        found = [one for one in found if not rightly.get(one.kind, False)]
        if any(one.kind is Kind.MISSING for one in found):
            # Where a row is missing another may stand in its place, and shows itself when both keys are asked for together.
            found = [
                replace(one, note=_MISPLACED) if one.kind is Kind.EXTRA and self._is_nowhere(table, one.key) else one
                for one in found
            ]
        return found

    def _is_nowhere(self, table: Table, key: Key) -> bool:
        return key not in self._sink.copies(table, [key])

    def _strays(self, table: Table, candidates: Candidates, settled: Settled) -> list[Difference]:
        """Rows of the sink that nobody finds under their key."""
        second, perhaps = strays(candidates.shown, candidates.doubled, settled)
        found = _stray_differences(second, _SECOND_COPY)
        if perhaps:
            self._progress(Step(table.name, "rows that may stand in a wrong place", len(perhaps)))
            again = {key: copy for key, copy in self._sink.scan(table) if perhaps.get(key) == copy}
            found += _stray_differences(again, _MISPLACED)
        return found

    # Repairing.

    def _repair(self, table: Table, expected: Expected, before: TableReport) -> TableReport:
        """Have the rows that differ published again, in order with the stream, and compare them again."""
        keys = sorted({difference.key for difference in before.differences})
        astray = [one for one in before.differences if one.note]
        deadline = self._patience.now_s() + self._options.repair_timeout_s
        asked: Iterable[Key] = keys
        while True:
            chosen = sorted(asked)
            self._say(f"asking capture to publish {rows_text(len(chosen))} of {table.name} again")
            mark = self._source.request_repair(table.name, chosen, slot=self._config.slot)
            ask_again_at = self._patience.now_s() + _ASK_AGAIN_S
            self._wait_for_repair(mark)
            while True:
                settled = self._settle(table, keys, expected)
                wrong = settled.different.keys() | set(settled.unsettled)
                now_s = self._patience.now_s()
                if not wrong or now_s > min(deadline, ask_again_at):
                    break
            if not wrong or now_s > deadline:
                break
            asked = wrong
        remaining = [*self._differences(table, settled), *self._still_astray(table, astray)]
        different = {difference.key for difference in remaining}
        repaired = [key for key in keys if key not in different and key not in settled.unsettled]
        if settled.different:
            self._say(
                f"still different {self._options.repair_timeout_s:.0f} s after it was asked for: {rows_text(len(settled.different))}"
                f" of {table.name}; `lockstep capture` and the sink's job must be running for a repair"
            )
        return replace(
            before,
            differences=_ordered(remaining),
            unsettled=tuple(sorted({*before.unsettled, *settled.unsettled})),
            repaired=tuple(repaired),
        )

    def _wait_for_repair(self, mark: Mark) -> None:
        if self._options.against == SOURCE:
            self._applied.wait(mark)
        # Else nobody promised that the source's LSNs are those of the comparison; the loop looks again anyway.

    def _still_astray(self, table: Table, before: Sequence[Difference]) -> list[Difference]:
        """Those strays that are there as before: the row itself was written again, but that doesn't remove another copy."""
        if not before:
            return []
        keys = {one.key for one in before}
        tags: dict[Key, list[str]] = {}
        for key, copy in self._sink.scan(table):
            if key in keys:
                tags.setdefault(key, []).append(copy.tag)
        return [
            one
            for one in before
            if (one.sink_tag in tags.get(one.key, ()) if one.note == _MISPLACED else len(tags.get(one.key, ())) > 1)
        ]

    # Explaining.

    def _explain(self, table: Table, report: TableReport) -> TableReport:
        """The same with what the topic and the dead letters know of the differences."""
        if not report.differences:
            return report
        keys = {difference.key for difference in report.differences}
        self._progress(Step(table.name, "the newest tags on the topic", len(keys)))
        tags = topic_tags(self._client, self._config.topics()[table.name], keys, patience=self._patience)
        reasons = rejected(self._config, sink=self._options.sink, generation=self._generation, tables=[table])
        return replace(
            report,
            differences=tuple(
                explained(one, None if tags is None else tags.get(one.key), reasons.get((table.name, one.key)))
                for one in report.differences
            ),
        )

    # Opening.

    def _open_existing(self, settings: SinkSettings, generation: int) -> OpenedSink:
        """Raises LockstepError when there is no such generation."""
        opened = self._open(settings, generation)
        existing = opened.generations.numbers()
        if generation not in existing:
            raise LockstepError(
                f"sink {self._options.sink!r} has no generation {generation}",
                hint=f"it has: {', '.join(map(str, existing)) or 'none'}",
            )
        return opened

    def _open(self, settings: SinkSettings, generation: int) -> OpenedSink:
        opened = open_sink(self._options.sink, settings, generation)
        self._closing.callback(opened.sink.close)
        return opened

    def _applied_of(self, opened: OpenedSink, generation: int) -> Applied:
        return Applied(
            opened.generations,
            name=self._options.sink,
            generation=generation,
            patience=self._patience,
            stall_s=self._options.stall_s,
            say=self._say,
        )

    def _live_generation(self) -> int:
        live = self._open(self._settings, 1).generations.live()
        if live is None:
            raise LockstepError(
                f"sink {self._options.sink!r} has no live generation: nothing was ever applied to it",
                hint=f"start `lockstep apply {self._options.sink}`",
            )
        return live


def compared_columns(
    origin: Table, logged: Table, ours: frozenset[str], theirs: frozenset[str], *, against: str
) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """The columns that both sides have, and those that aren't compared though one of them has them, with the reason. Pure.

    ``origin`` is the table's shape on the expected side, ``logged`` the newest one in the log; ``ours`` and ``theirs`` are the columns
    that the sink's settings and the expected side's leave out.
    """
    known = {column.name for column in logged.columns}
    compared, reasons = [], []
    for name in (column.name for column in origin.columns):
        if name not in known:
            reasons.append((name, "no event has it yet: no row was changed since it was added or renamed"))
        elif name in ours or name in theirs:
            reasons.append((name, f"{'the sink' if name in ours else against} was built without it (setting exclude)"))
        else:
            compared.append(name)
    return compared, tuple(reasons)


def explained(one: Difference, topic_tag: str | None, rejection: str | None) -> Difference:
    """A difference with its reason, as far as one is known. Pure."""
    notes = [one.note] if one.note else []
    if rejection is not None:
        notes.append(f"rejected: {rejection}")
    if topic_tag is not None and one.sink_tag is not None and one.sink_tag > topic_tag:
        notes.append("its tag is newer than the topic's, so nothing from there can replace it: rebuild the sink")
    return replace(one, topic_tag=topic_tag, note="; ".join(notes))


def _difference(table: Table, key: Key, finding: Finding) -> Difference:
    if finding.stored is None:
        return Difference(Kind.MISSING, key)
    if finding.expected is None:
        return Difference(Kind.EXTRA, key, sink_tag=finding.tag)
    columns = differing_columns(table, finding.expected, finding.stored)
    return Difference(Kind.DIFFERENT, key, columns, finding.tag)


def _stray_differences(found: Mapping[Key, Copy], note: str) -> list[Difference]:
    return [Difference(Kind.EXTRA, key, sink_tag=copy.tag, note=note) for key, copy in found.items()]


def _ordered(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    return tuple(sorted(set(differences), key=lambda one: (one.key, one.kind)))


def _settings(config: Config, sink: str) -> SinkSettings:
    try:
        return config.sinks[sink]
    except KeyError:
        raise ConfigurationError(
            f"no such sink: {sink}", hint=f"sinks of this configuration: {', '.join(config.sinks) or 'none'}"
        ) from None


def _table_names(config: Config, options: VerifyOptions, settings: SinkSettings) -> list[TableName]:
    """The tables to compare. Raises ConfigurationError for options that can't be meant."""
    applied = list(map(TableName.parse, settings.tables)) if settings.tables else list(config.source.keyed_names)
    if options.against not in (SOURCE, TOPIC):
        _generation_number(options.against)
        if options.repair:
            raise ConfigurationError(
                "--repair doesn't go with --against a generation: which of both is right?",
                hint="compare each with the source, and repair where it differs",
            )
    try:
        names = [TableName.parse(text) for text in options.tables]
    except ValueError as error:
        raise ConfigurationError(f"--table: {error}") from None
    unknown = [name for name in names if name not in applied]
    if unknown:
        raise ConfigurationError(
            f"sink {options.sink!r} has no table {unknown[0]}", hint=f"its tables: {', '.join(map(str, applied))}"
        )
    chosen = names or applied
    if options.keys and len(chosen) != 1:
        raise ConfigurationError("--keys needs to know of which table", hint="name one with --table")
    return chosen


def _generation_number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(
            f"--against {text}: nothing that a sink can be compared with",
            hint="source, topic, or the number of a generation (`lockstep generations` lists them)",
        )
    return int(text)


def has_all_columns(origin: Table, logged: Table) -> bool:
    """Whether a table has every column that the log knows of it, by its name and type. Pure."""
    now = {column.name: (column.type_oid, column.type_modifier) for column in origin.columns}
    return all(now.get(column.name) == (column.type_oid, column.type_modifier) for column in logged.columns)


def made_otherwise(ours: SinkSettings, theirs: SinkSettings, table: TableName) -> list[str]:
    """Columns that two sinks have, but not the same values in them. Pure."""

    def made(settings: SinkSettings) -> dict[str, list[object]]:
        how: dict[str, list[object]] = {}
        for text, made_so in (*settings.mask.items(), *settings.computed.items()):
            of, column = parse_column(text)
            if of == table:
                how.setdefault(column, []).append(made_so)
        return how

    one, other = made(ours), made(theirs)
    return sorted(column for column in one.keys() | other.keys() if one.get(column) != other.get(column))


def _excluded(settings: SinkSettings, table: TableName) -> frozenset[str]:
    """The columns of a table that these settings leave out."""
    return projection_of(settings).excluded.get(table, frozenset())
