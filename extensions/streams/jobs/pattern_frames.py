"""A pattern -> the frame of its matches, or why it can't be maintained. Spark would read a stream that occurs twice at
two paces, so each stream is read once. Each event is marked with the steps that it fits. All events go through one
operator that sees a key's events together: ``extensions.streams.executor.pattern_state``.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from extensions.streams.executor.pattern_matching import Pattern, Stage
from extensions.streams.executor.pattern_state import EVENTS_MAX, INPUT, KEY, OUTPUT, PatternState
from extensions.streams.jobs.frames import POSITION, events_with_position, quoted, union
from extensions.streams.jobs.sql_plans import (
    QueryRefused,
    Sources,
    elements,
    first_line,
    kind_of,
    nodes_of,
    undetermined,
)
from extensions.streams.settings import BEGAN, ENDED, PatternSettings, StreamSettings, duration_ms
from jobs.spark.jvm import REFUSALS
from jobs.spark.keyed_state import with_keyed_state

_US_PER_MS: Final = 1_000

_NOT_OF_ONE_ROW: Final = frozenset({"Aggregate", "Generate", "Window"})
"""Operators of expressions that aren't over a single row."""

_MEMBERS: Final = frozenset({"GetStructField", "GetArrayStructFields"})
_PLACES: Final = frozenset({"GetArrayItem", "ElementAt"})


def stages_of(pattern: PatternSettings) -> Pattern:
    """A pattern in the form that is matched. Pure."""
    stages = list[Stage]()
    for number, step in enumerate(pattern.steps):
        if step.without:
            last = stages.pop()
            stages.append(Stage(last.step, last.without | 1 << number))
        else:
            stages += [Stage(number)] * step.times
    return Pattern(tuple(stages), duration_ms(pattern.within) * _US_PER_MS)


def planned_pattern(pattern: PatternSettings, sources: Sources) -> DataFrame:
    """The streaming frame of a pattern's matches. ``sources`` may have other streams too. Raises QueryRefused."""
    settings = {name: stream for name, (_, stream) in sources.items()}
    if problems := [f"pattern.{problem}" for problem in pattern.problems(settings)]:
        raise QueryRefused(*problems)
    events = {name: events_with_position(*sources[name], is_ordered=True) for name in pattern.streams}
    problems = _problems_of_steps(pattern, events)
    whole = {name: tuple(_columns(frame)) for name, frame in events.items()}
    used, found = _used_columns(pattern, events, whole)
    if problems := problems + found:
        raise QueryRefused(*problems)
    rows = union([_rows(pattern, frame, settings[name], name, used[name]) for name, frame in events.items()])
    matches = with_keyed_state(rows, KEY, PatternState(stages_of(pattern), EVENTS_MAX), OUTPUT)
    return _selected(pattern, _named(pattern, events, used, matches))


def _columns(events: DataFrame) -> Iterable[str]:
    return (name for name in events.columns if name not in POSITION)


def _problems_of_steps(pattern: PatternSettings, events: Mapping[str, DataFrame]) -> list[str]:
    problems = []
    for step in pattern.steps:
        if step.where is None:
            continue
        setting = f"pattern.steps.{step.name}.where"
        own = events[step.stream].select(*map(quoted, _columns(events[step.stream])))
        try:
            frame: Any = own.where(f.expr(step.where))
            problems += [f"{setting}: {problem}" for problem in undetermined(frame._jdf.queryExecution().analyzed())]
        except REFUSALS as error:
            problems.append(f"{setting}: {first_line(error)}")
    return problems


def _rows(
    pattern: PatternSettings, events: DataFrame, stream: StreamSettings, name: str, used: tuple[str, ...]
) -> DataFrame:
    """A stream's events that fit a step, as ``INPUT`` with their key, and their time for the watermark. Events of one
    time are ordered by their streams, then by their ids or, without ids, by their place.
    """
    numbered = [(number, step) for number, step in enumerate(pattern.steps) if step.stream == name]
    bits = f.lit(0).cast("bigint")
    for number, step in numbered:
        fits = f.lit(True) if step.where is None else f.coalesce(f.expr(step.where), f.lit(False))
        bits = bits.bitwiseOR(f.when(fits, f.lit(1 << number)).otherwise(f.lit(0)).cast("bigint"))
    time = f.col(quoted(stream.time))
    identity = [_text(f.col(quoted(each))) for each in stream.id] or _place()
    tie = f.concat(f.lit(f"{pattern.streams.index(name):03} "), f.to_json(f.array(*identity)))
    key = f.to_json(_texts(pattern.per))
    columns = dict(
        zip(INPUT, (f.unix_micros(time), tie, bits, f.to_json(_texts(used)) if used else f.lit("{}")), strict=True)
    )
    known = f.lit(True)
    for column in pattern.per:
        known = known & f.col(quoted(column)).isNotNull()
    rows = events.where(known).select(
        key.alias(KEY), time.alias("at"), *[value.alias(column) for column, value in columns.items()]
    )
    return rows.where(f.col("steps") != f.lit(0))


def _place() -> list[Column]:
    """A record's place, as texts that sort in its order."""
    topic, partition, offset = map(f.col, POSITION)
    return [topic, f.lpad(partition.cast("string"), 10, "0"), f.lpad(offset.cast("string"), 20, "0")]


def _texts(names: Iterable[str]) -> Column:
    """These columns as a struct of texts. Its members are numbered, since column names may be anything."""
    return f.struct(*[_text(f.col(quoted(name))).alias(f"c{place}") for place, name in enumerate(names)])


def _text(value: Column) -> Column:
    return value.cast("string")


def _typed(text: Column, kinds: Mapping[str, str]) -> Column:
    """``_texts`` as JSON -> a struct of the columns with their types."""
    read = f.from_json(text, ", ".join(f"c{place} string" for place in range(len(kinds))) or "c0 string")
    columns = [read.getField(f"c{place}").cast(kind).alias(name) for place, (name, kind) in enumerate(kinds.items())]
    return f.struct(*columns)


def _typed_list(texts: Column, kinds: Mapping[str, str]) -> Column:
    return f.transform(texts, lambda text: _typed(text, kinds))


def _kinds(events: DataFrame, names: Iterable[str]) -> dict[str, str]:
    """The types of these columns of a stream, as Spark names them."""
    return {name: events.schema[name].dataType.simpleString() for name in names}


def _named(
    pattern: PatternSettings,
    events: Mapping[str, DataFrame],
    used: Mapping[str, tuple[str, ...]],
    matches: DataFrame,
) -> DataFrame:
    """Matches with what ``select`` may name: the key's columns, the times, and the event of each step."""
    key = _typed(f.col(KEY), _kinds(events[pattern.streams[0]], pattern.per))
    columns = {
        **{name: key.getField(name) for name in pattern.per},
        BEGAN: f.timestamp_micros("began_us"),
        ENDED: f.timestamp_micros("ended_us"),
    }
    place = 0
    for step in pattern.steps:
        if step.without:
            continue
        kinds = _kinds(events[step.stream], used[step.stream])
        if kinds and step.times == 1:
            columns[step.name] = _typed(f.col("events").getItem(place), kinds)
        elif kinds:
            own = f.slice("events", place + 1, step.times)
            columns[step.name] = _typed_list(own, kinds)
        place += step.times
    return matches.select(*[value.alias(name) for name, value in columns.items()])


def _selected(pattern: PatternSettings, named: DataFrame) -> DataFrame:
    return named.select(
        *map(quoted, pattern.own_columns), *[f.expr(text).alias(name) for name, text in pattern.select.items()]
    )


def _used_columns(
    pattern: PatternSettings, events: Mapping[str, DataFrame], whole: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The columns of each stream that ``select`` needs, so that only those are stored; and problems of ``select``."""
    session = next(iter(events.values())).sparkSession
    empty = session.createDataFrame([], OUTPUT)
    named = _named(pattern, events, whole, empty)
    streams = {step.name: step.stream for step in pattern.steps if not step.without}
    used = {name: set[str]() for name in events}
    problems = []
    for column, text in pattern.select.items():
        setting = f"pattern.select.{column}"
        try:
            frame: Any = named.select(f.expr(text))
            logical = frame._jdf.queryExecution().analyzed()
        except REFUSALS as error:
            problems.append(f"{setting}: {first_line(error)}")
            continue
        if _NOT_OF_ONE_ROW & {kind_of(node) for node in nodes_of(logical)}:
            problems.append(f"{setting}: it must be an expression over the events of one match")
            continue
        problems += [f"{setting}: {problem}" for problem in undetermined(logical)]
        for expression in elements(logical.expressions()):
            for step, member in _members(expression, streams):
                used[streams[step]].update([member] if member is not None else whole[streams[step]])
    return {name: tuple(each for each in whole[name] if each in used[name]) for name in events}, problems


def _members(expression: Any, steps: Iterable[str]) -> list[tuple[str, str | None]]:
    """The members of steps' events that an expression reads; None for a whole event."""
    if kind_of(expression) == "AttributeReference":
        return [(str(expression.name()), None)] if str(expression.name()) in steps else []
    inner = elements(expression.children())
    if kind_of(expression) in _MEMBERS:
        event, places = inner[0], list[Any]()
        while kind_of(event) in _PLACES:
            event, *more = elements(event.children())
            places += more
        if kind_of(event) == "AttributeReference" and str(event.name()) in steps:
            found = [(str(event.name()), _member_name(expression))]
            return [*found, *_all_members(places, steps)]
    return _all_members(inner, steps)


def _all_members(expressions: Iterable[Any], steps: Iterable[str]) -> list[tuple[str, str | None]]:
    return [each for expression in expressions for each in _members(expression, steps)]


def _member_name(expression: Any) -> str | None:
    if kind_of(expression) == "GetStructField":
        return str(expression.extractFieldName())
    return str(expression.field().name())
