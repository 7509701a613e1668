"""Settings of streams and of the queries over them. Pure data."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Final, Self

from pydantic import Field, StrictBool, field_validator, model_validator

from cdc.model.table import Column, TableName
from cdc.settings import Settings
from cdc.webhook import WEBHOOK_VARIABLE_END, Webhook, WebhookSettings

STREAM_QUERIES_SCHEMA: Final = "stream_queries"
"""A query's result is a table of this schema, with the query's name."""

RECEIVED: Final = "received_at"
"""The column of every stream with the time of the record in Kafka."""

CLOCK_OFFSET: Final = "clock_offset_ms"
"""The column with the correction of the event's time in a stream that has ``sent``, in milliseconds."""

BEGAN: Final = "began_at"
"""The column of a pattern's result with the time of a match's first event."""

ENDED: Final = "ended_at"
"""The column of a pattern's result with the time of a match's last event."""

TIMES_MAX: Final = 100
"""The most events of one step in a match: all are stored until the match is complete."""

STEPS_MAX: Final = 20
"""The steps that an event fits are bits of one number, and nobody reads longer patterns."""

PRIVATE: Final = "__lockstep_"
"""The prefix of our own columns, which stream columns may not have."""

_COLUMN: Final = re.compile(r"[A-Za-z0-9_@$:-]{1,63}")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,40}")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_DURATION: Final = re.compile(r"(?P<count>\d{1,6}) (?P<unit>millisecond|second|minute|hour|day)s?")
_UNIT_MS: Final = {"millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}

_SPARK_TYPES: Final[Mapping[str, str]] = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "float8": "double",
    "text": "string",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
}
_OIDS: Final = {
    "bool": 16, "int2": 21, "int4": 23, "int8": 20, "float8": 701, "text": 25, "date": 1082, "timestamp": 1114,
    "timestamptz": 1184, "numeric": 1700,
}  # fmt: skip
_NUMERIC: Final = re.compile(r"numeric\((?P<precision>\d+),\s*(?P<scale>\d+)\)")
_DECIMAL: Final = re.compile(r"decimal\((?P<precision>\d+),(?P<scale>\d+)\)")
_PRECISION_MAX: Final = 38

TYPES: Final = f"{', '.join(_SPARK_TYPES)} and numeric(precision,scale)"
"""The types that columns of streams and of results may have, for messages."""


def duration_ms(text: str) -> int:
    """``10 minutes`` in milliseconds. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("must be a number and a unit, as '10 minutes'; units are milliseconds to days")
    return int(match["count"]) * _UNIT_MS[match["unit"]]


def spark_type(type_name: str) -> str | None:
    """Spark's name of a column's type; None for a type that streams don't have."""
    if (match := _NUMERIC.fullmatch(type_name)) is not None:
        precision, scale = int(match["precision"]), int(match["scale"])
        return f"decimal({precision},{scale})" if 0 < precision <= _PRECISION_MAX and scale <= precision else None
    return _SPARK_TYPES.get(type_name)


def column_of(name: str, spark_name: str) -> Column | None:
    """A result's column for sinks, from its type in Spark; None for a type that sinks don't get."""
    if (match := _DECIMAL.fullmatch(spark_name)) is not None:
        precision, scale = int(match["precision"]), int(match["scale"])
        type_name, modifier = f"numeric({precision},{scale})", (precision << 16 | scale) + 4
        return Column(name, type_name, "numeric", False, _OIDS["numeric"], modifier)
    for type_name, known in _SPARK_TYPES.items():
        if known == spark_name:
            return Column(name, type_name, type_name, False, _OIDS[type_name], -1)
    return None


_ROWS_OF: Final = (
    "table -> the columns that hold the key of one of its rows, in the order of that key, so that `lockstep erase`"
    " finds what is of the row"
)


class StreamSettings(Settings):
    """A Kafka topic whose records are events: JSON objects with the time at which they happened."""

    topic: Annotated[str, Field(min_length=1, description="the Kafka topic; any program may write it")]
    columns: Annotated[
        Mapping[str, str], Field(min_length=1, description=f"the members to be read, each with its type: {TYPES}")
    ]
    time: str = Field(description="the column with the event's time, a timestamptz")
    late: str = Field(description="how much later than the newest event one may come, as '10 minutes'")
    id: tuple[str, ...] = Field(
        default=(), description="columns that an event and its repetition have in common; none: every record is one"
    )
    sent: str | None = Field(
        default=None,
        description="the column with the time of sending by the device's clock; corrects the event's time by that"
        " clock's offset",
    )
    rows_of: Mapping[str, tuple[str, ...]] = Field(default={}, description=_ROWS_OF)

    @field_validator("topic")
    @classmethod
    def _is_topic(cls, topic: str) -> str:
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise ValueError("a topic's name has up to 249 letters, digits, dots, underscores and hyphens")
        return topic

    @field_validator("id")
    @classmethod
    def _are_different(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _once(names)

    @field_validator("late")
    @classmethod
    def _is_duration(cls, text: str) -> str:
        duration_ms(text)
        return text

    @model_validator(mode="after")
    def _columns_fit(self) -> Self:
        problems = [
            f"columns.{name}: {kind!r} is none of {TYPES}"
            for name, kind in self.columns.items()
            if spark_type(kind) is None
        ]
        problems += _column_problems(self.columns, self._added)
        for setting, name in (("time", self.time), ("sent", self.sent)):
            if name is not None and self.columns.get(name) != "timestamptz":
                problems.append(f"{setting}: {name!r} is no column of type timestamptz")
        problems += [f"id: {name!r} is no column of the stream" for name in self.id if name not in self.columns]
        problems += _problems_of_rows(self.rows_of, self.columns, "the stream")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def _added(self) -> Sequence[str]:
        return (RECEIVED,) if self.sent is None else (RECEIVED, CLOCK_OFFSET)


class StepSettings(Settings):
    """An event of a pattern, or one that must not happen there."""

    name: str = Field(description="the event's name in `select`")
    stream: str = Field(description="the stream that it is from")
    where: Annotated[
        str | None, Field(default=None, min_length=1, description="a condition on the stream's columns, in Spark SQL")
    ]
    times: Annotated[int, Field(default=1, ge=1, le=TIMES_MAX, description="how many of them there have to be")]
    without: StrictBool = Field(
        default=False,
        description="no such event may be between the one before and the one after; with none after, until the time"
        " is over",
    )


class PatternSettings(Settings):
    """Events that have something in common and follow each other within a time."""

    per: Annotated[
        tuple[str, ...], Field(min_length=1, description="columns of all its streams that the events have in common")
    ]
    steps: Annotated[
        tuple[StepSettings, ...], Field(min_length=1, max_length=STEPS_MAX, description="the events, in their order")
    ]
    within: str = Field(description="how much later than the first event the last one may be, as '30 minutes'")
    select: Annotated[
        Mapping[str, str],
        Field(default_factory=dict, description="further columns, each an expression over the events' names"),
    ]

    @field_validator("per")
    @classmethod
    def _are_different(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _once(names)

    @field_validator("within")
    @classmethod
    def _is_duration(cls, text: str) -> str:
        if not duration_ms(text):
            raise ValueError("must be more than 0")
        return text

    @model_validator(mode="after")
    def _steps_fit(self) -> Self:
        names = [step.name for step in self.steps]
        problems = [f"per.{name}: the result has this column already" for name in self.per if name in (BEGAN, ENDED)]
        problems += name_problems("steps", names)
        problems += [f"steps: two are called {name!r}" for name in dict.fromkeys(names) if names.count(name) > 1]
        problems += [f"steps.{name}: the result has this column already" for name in names if name in self.own_columns]
        problems += [
            f"steps.{step.name}: `times` doesn't fit with `without`: one such event is one too many; remove `times`"
            for step in self.steps
            if step.without and step.times > 1
        ]
        if self.steps[0].without:
            problems.append(f"steps.{names[0]}: a pattern begins with an event: the first step has no `without`")
        elif sum(step.times for step in self.steps) == 1 and not self.steps[-1].without:
            problems.append("steps: it is a single event: write a query as `sql`, or add a step")
        problems += name_problems("select", list(self.select))
        problems += [
            f"select.{name}: the result has this column already" for name in self.select if name in self.own_columns
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def own_columns(self) -> tuple[str, ...]:
        """The columns of its result before those of ``select``."""
        return (*self.per, BEGAN, ENDED)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of its steps, each once, in the order of the steps."""
        return tuple(dict.fromkeys(step.stream for step in self.steps))

    def problems(self, streams: Mapping[str, StreamSettings]) -> list[str]:
        """Conflicts with the configured streams, a sentence each."""
        problems = [
            f"steps.{step.name}: there is no section [streams.{step.stream}]"
            for step in self.steps
            if step.stream not in streams
        ]
        known = {name: streams[name] for name in self.streams if name in streams}
        for column in self.per:
            kinds = {name: stream.columns[column] for name, stream in known.items() if column in stream.columns}
            problems += [f"per: stream {name!r} has no column {column!r}" for name in known if name not in kinds]
            if len(set(kinds.values())) > 1:
                told = ", ".join(f"{kind} in {name!r}" for name, kind in kinds.items())
                problems.append(f"per: {column!r} is {told}: give it one type")
        return problems


class StreamQuerySettings(Settings):
    """A query in Spark SQL over streams, or a pattern. Its rows are final: none is changed or deleted."""

    sql: Annotated[str | None, Field(default=None, min_length=1)]
    key: Annotated[tuple[str, ...], Field(default=(), min_length=1)]
    pattern: PatternSettings | None = None
    topic: StrictBool = Field(default=False, description="whether the rows are on a topic of their own as well")
    webhook: WebhookSettings | None = Field(
        default=None, description="an HTTP endpoint to which each row is posted, from that topic"
    )
    rows_of: Mapping[str, tuple[str, ...]] = Field(default={}, description=_ROWS_OF)

    @field_validator("key")
    @classmethod
    def _are_different(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _once(names)

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.sql is None) == (self.pattern is None):
            raise ValueError("it needs `sql` with `key`, or a `pattern`, and not both")
        if self.pattern is None and not self.key:
            raise ValueError("key: is missing")
        if self.pattern is not None and self.key:
            raise ValueError(
                f"key: {', '.join(self.key_columns)} identify a match, since no two begin at the same time: remove it"
            )
        if problems := _problems_of_rows(self.rows_of, self.key_columns, "the result's key"):
            raise ValueError("; ".join(problems))
        return self

    def key_of_row(self, table: str, streams: Mapping[str, StreamSettings]) -> tuple[str, ...] | None:
        """The columns of the result's key that hold the key of a table's row; None if the settings don't name them. A
        pattern's ``per`` columns are the same in all events of a match, so ``rows_of`` of any of its streams applies.
        """
        if table in self.rows_of:
            return self.rows_of[table]
        if self.pattern is None:
            return None
        for name in self.pattern.streams:
            columns = streams[name].rows_of.get(table)
            if columns is not None and set(columns) <= set(self.pattern.per):
                return columns
        return None

    @property
    def has_topic(self) -> bool:
        """Whether its rows are on a topic. Rows for a webhook wait there."""
        return self.topic or self.webhook is not None

    @property
    def order_columns(self) -> tuple[str, ...]:
        """Rows with equal values in these columns come in order: matches of the same events' key, by their time."""
        return self.key if self.pattern is None else self.pattern.per

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that identify the result's rows."""
        return self.key if self.pattern is None else (*self.pattern.per, BEGAN)


def _column_problems(columns: Collection[str], added: Collection[str]) -> list[str]:
    """Problems of the names of a stream's columns, to which ``added`` are added. Case counts, as in JSON."""
    problems = [
        f"columns.{name}: a column's name has up to 63 letters, digits and _ @ $ : -; Spark takes others for something"
        " else"
        for name in columns
        if not _COLUMN.fullmatch(name)
    ]
    problems += [
        f"columns.{name}: names that begin with {PRIVATE} are Lockstep's own"
        for name in columns
        if name.startswith(PRIVATE)
    ]
    problems += [f"columns.{name}: the stream has this column already" for name in columns if name in added]
    return problems


def _problems_of_rows(rows_of: Mapping[str, Sequence[str]], columns: Collection[str], whose: str) -> list[str]:
    """Problems of the columns that hold keys of tables' rows. The required number isn't known here."""
    problems = []
    for table, names in rows_of.items():
        try:
            written = str(TableName.parse(table))
        except ValueError as error:
            problems.append(f"rows_of.{table}: {error}")
        else:
            problems += [f"rows_of.{table}: write it as {written}"] if written != table else []
        if not names:
            problems.append(f"rows_of.{table}: names no column")
        problems += [f"rows_of.{table}: names {name!r} twice" for name in set(names) if names.count(name) > 1]
        problems += [f"rows_of.{table}: {name!r} is no column of {whose}" for name in names if name not in columns]
    return problems


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if repeated:
        raise ValueError(f"names a column twice: {', '.join(repeated)}")
    return names


def webhook_variable(query: str) -> str:
    return f"LOCKSTEP_STREAM_QUERY_{query.upper()}{WEBHOOK_VARIABLE_END}"


def row_webhook(query: str, settings: WebhookSettings) -> Webhook:
    return Webhook(settings, setting=f"stream_queries.{query}.webhook", variable=webhook_variable(query))


def result_name(query: str) -> TableName:
    return TableName(STREAM_QUERIES_SCHEMA, query)


def name_problems(section: str, names: Sequence[str]) -> list[str]:
    """Problems of the names of sections, which are names in SQL and in topics."""
    return [
        f"{section}.{name}: a name is a lower-case letter followed by up to 40 lower-case letters, digits or"
        " underscores"
        for name in names
        if not _NAME.fullmatch(name)
    ]
