"""A job that ``lockstep rebuild`` requests from the running driver, so that no second Spark has to start.

Request and answer are coordination records of the destination, like the heartbeat, and change about once a second while
their author lives:

``g<n>.build_request``
    The command's: the job that should apply to generation <n> while that is built. The settings that shape rows are in
    ``record.<n>``; this has a hash of all settings. The command removes it when no job should apply any more. A driver
    stops the job of a request that no longer changes.
``g<n>.build_answer``
    The driver's: how far the job is, and how it has ended. The command removes it once the job has ended.

A driver that ends also ends the job, and the next driver begins it again. A command that finds no driver starts a Spark
of its own. If two jobs apply for a moment, the generation's lease makes the older one end.
"""

import hashlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, Self

import orjson
from pydantic import BaseModel, SecretStr

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from jobs.executor.result import Failure
from jobs.generations.lease import SYSTEM_CLOCK, Clock, running_of
from jobs.generations.starting import STARTING_NAME
from sinks.contract import CoordinationRecords

BEAT_S: Final = 1.0
"""How often each side updates its record and looks at the other's."""


class Silence:
    """How long values haven't changed, for a caller that looks repeatedly."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._signs: tuple[object, ...] | None = None
        self._since_s = 0.0

    def seconds(self, *signs: object) -> float:
        """How long they have been the same."""
        now_s = self._monotonic_s()
        if signs != self._signs:
            self._signs, self._since_s = signs, now_s
        return now_s - self._since_s


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """The requested job, in terms of ``SinkPlan``. ``tables`` are those that it reads at first. ``settings`` is the
    mark of the sink's settings in the command: a driver that was started with others must not build by them. ``run``
    tells requests apart, ``beats`` counts the command's heartbeats."""

    tables: tuple[TableName, ...]
    trimmed: bool
    settings: str
    run: str
    beats: int = 0

    def check_settings(self, settings: BaseModel) -> None:
        """Raise LockstepError if the command has other settings."""
        if self.settings != settings_mark(settings, self.run):
            raise LockstepError("the settings of the sink have changed since this driver began")

    def next(self) -> Self:
        """The same request, one heartbeat later."""
        return replace(self, beats=self.beats + 1)

    def to_json(self) -> str:
        return orjson.dumps({**asdict(self), "tables": [[name.schema, name.name] for name in self.tables]}).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields: dict[str, Any] = orjson.loads(text)
        return cls(**{**fields, "tables": tuple(TableName(*name) for name in fields["tables"])})


def settings_mark(settings: BaseModel, run: str) -> str:
    """A hash of these settings and the request. Readers of the destination see it, so each secret in it is hashed like
    a password: trying many takes long, and earlier attempts don't help."""

    def plain(value: object) -> object:
        if isinstance(value, SecretStr):
            secret = value.get_secret_value().encode()
            return hashlib.scrypt(secret, salt=run.encode(), n=2**14, r=8, p=1).hex()
        return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)

    document = orjson.dumps(settings.model_dump(), default=plain, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(document).hexdigest()


class BuildState(StrEnum):
    """``APPLIES``: the job is at work. ``DONE``: it has ended in order. ``FAILED``: it ended with an error.
    ``REFUSED``: this driver can't begin it. ``LEFT``: the driver ended first, and another one may begin it."""

    APPLIES = "applies"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class BuildAnswer:
    """How far the job of request ``run`` is. ``beats`` counts the driver's heartbeats. ``queries`` counts the queries
    that it has started. ``batch`` has the fields of the last ``BatchApplied``, ``rows`` counts the rows of all.
    ``waiting`` says what the job waits for, if anything. ``failure``: why it ``FAILED`` or was ``REFUSED``."""

    run: str
    state: BuildState = BuildState.APPLIES
    beats: int = 0
    queries: int = 0
    rows: int = 0
    batch: Mapping[str, Any] | None = None
    waiting: str = ""
    failure: Failure | None = None

    def error(self) -> LockstepError:
        """The error of ``failure``."""
        assert self.failure is not None
        return self.failure.error()

    def to_json(self) -> str:
        failure = None if self.failure is None else self.failure.to_json()
        return orjson.dumps({**asdict(self), "failure": failure}).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields: dict[str, Any] = orjson.loads(text)
        failure = fields["failure"]
        return cls(
            **{
                **fields,
                "state": BuildState(fields["state"]),
                "failure": None if failure is None else Failure.from_json(failure),
            }
        )


def request_name(generation: int) -> str:
    return f"g{generation}.build_request"


def answer_name(generation: int) -> str:
    return f"g{generation}.build_answer"


def load_request(records: CoordinationRecords, generation: int) -> BuildRequest | None:
    """A generation's request; None without one that this version can read. Raises what the destination raises."""
    text = records.load(request_name(generation))
    try:
        return None if text is None else BuildRequest.from_json(text)
    except (TypeError, KeyError, ValueError):
        return None


def load_answer(records: CoordinationRecords, generation: int) -> BuildAnswer | None:
    """A generation's answer; as ``load_request``."""
    text = records.load(answer_name(generation))
    try:
        return None if text is None else BuildAnswer.from_json(text)
    except (TypeError, KeyError, ValueError):
        return None


def save_request(records: CoordinationRecords, generation: int, request: BuildRequest) -> None:
    """Raises what the destination raises."""
    records.save(request_name(generation), request.to_json())


def save_answer(records: CoordinationRecords, generation: int, answer: BuildAnswer) -> None:
    """Raises what the destination raises."""
    records.save(answer_name(generation), answer.to_json())


def withdraw(records: CoordinationRecords, generation: int, run: str | None = None) -> None:
    """Remove the request, or only that of this run, so that no driver applies. Raises what the destination raises."""
    request = load_request(records, generation)
    if run is None or (request is not None and request.run == run):
        records.save(request_name(generation), None)


def forget(records: CoordinationRecords, generation: int) -> None:
    """Remove an answer that was read. Raises what the destination raises."""
    records.save(answer_name(generation), None)


def has_driver(records: CoordinationRecords, generations: Collection[int], clock: Clock = SYSTEM_CLOCK) -> bool:
    """Whether a driver applies to one of a sink's generations, or is starting. It may take seconds to see that there is
    none. Raises what the destination raises."""
    starting = records.load(STARTING_NAME)
    if running_of(records, generations, clock):
        return True
    return records.load(STARTING_NAME) not in (None, starting)
