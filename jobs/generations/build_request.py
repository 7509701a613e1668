"""A job that ``lockstep rebuild`` asks the running driver for: no second Spark has to start.

Both are coordination records of the destination, as the heartbeat is, and each changes about once a second while its
author lives:

``g<n>.build_request``
    The command's: which job is to apply to generation <n> while that is built. What shapes the rows is in
    ``record.<n>``; of all settings there is a mark. The command removes it when no job is to apply any more. A driver
    drops the job of a request that changes no more.
``g<n>.build_answer``
    The driver's: how far the job is, and how it has ended. The command removes it once the job has ended.

A driver ends the job when it ends itself, and the next driver begins it again. A command that finds no driver starts a
Spark of its own. Should two jobs apply for a moment, the lease of the generation has the older one end.
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
"""How often each side shows that it lives, and looks at the other."""


class Silence:
    """For how long signs of life haven't changed, for who looks again and again."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._signs: tuple[object, ...] | None = None
        self._since_s = 0.0

    def seconds(self, *signs: object) -> float:
        """Since these are as they are."""
        now_s = self._monotonic_s()
        if signs != self._signs:
            self._signs, self._since_s = signs, now_s
        return now_s - self._since_s


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """The job that is asked for, as ``SinkPlan`` has it. ``tables`` are those that it reads at first.

    ``settings`` is the mark of the sink's settings that the command has: a driver that was started with others isn't
    to build by them. ``run`` tells requests apart, ``beats`` counts the signs of life of the command.
    """

    tables: tuple[TableName, ...]
    trimmed: bool
    settings: str
    run: str
    beats: int = 0

    def check_settings(self, settings: BaseModel) -> None:
        """Raise LockstepError where the command has others."""
        if self.settings != settings_mark(settings, self.run):
            raise LockstepError("the settings of the sink have changed since this driver began")

    def next(self) -> Self:
        """The same, with one more sign of life."""
        return replace(self, beats=self.beats + 1)

    def to_json(self) -> str:
        return orjson.dumps({**asdict(self), "tables": [[name.schema, name.name] for name in self.tables]}).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields: dict[str, Any] = orjson.loads(text)
        return cls(**{**fields, "tables": tuple(TableName(*name) for name in fields["tables"])})


def settings_mark(settings: BaseModel, run: str) -> str:
    """The same for the same settings and request. Readers of the destination see it, so each secret in it is hashed as
    a password is: to try many takes long, and nothing that was tried before helps.
    """

    def plain(value: object) -> object:
        if isinstance(value, SecretStr):
            secret = value.get_secret_value().encode()
            return hashlib.scrypt(secret, salt=run.encode(), n=2**14, r=8, p=1).hex()
        return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)

    document = orjson.dumps(settings.model_dump(), default=plain, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(document).hexdigest()


class BuildState(StrEnum):
    """``APPLIES``: the job is at work. ``DONE``: it has ended in order. ``FAILED``: by an error.

    ``REFUSED``: this driver can't begin it. ``LEFT``: the driver has ended first, and another one may begin it.
    """

    APPLIES = "applies"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class BuildAnswer:
    """How far the job of request ``run`` is. ``beats`` counts the driver's signs of life.

    ``queries`` counts those that it has started. ``batch`` has the fields of the last ``StatusReport``, ``rows`` counts
    the rows of all. ``waiting`` says what the job waits for, "" where it doesn't. ``failure``: why it ``FAILED`` or was
    ``REFUSED``.
    """

    run: str
    state: BuildState = BuildState.APPLIES
    beats: int = 0
    queries: int = 0
    rows: int = 0
    batch: Mapping[str, Any] | None = None
    waiting: str = ""
    failure: Failure | None = None

    def error(self) -> LockstepError:
        """The error that it tells of."""
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
    """The coordination record of the request."""
    return f"g{generation}.build_request"


def answer_name(generation: int) -> str:
    """The coordination record of the answer."""
    return f"g{generation}.build_answer"


def load_request(records: CoordinationRecords, generation: int) -> BuildRequest | None:
    """The request of a generation; None where there is none that this version knows. Raises what the destination
    raises."""
    text = records.load(request_name(generation))
    try:
        return None if text is None else BuildRequest.from_json(text)
    except (TypeError, KeyError, ValueError):
        return None


def load_answer(records: CoordinationRecords, generation: int) -> BuildAnswer | None:
    """The answer of a generation; as ``load_request``."""
    text = records.load(answer_name(generation))
    try:
        return None if text is None else BuildAnswer.from_json(text)
    except (TypeError, KeyError, ValueError):
        return None


def save_request(records: CoordinationRecords, generation: int, request: BuildRequest) -> None:
    """Replace it. Raises what the destination raises."""
    records.save(request_name(generation), request.to_json())


def save_answer(records: CoordinationRecords, generation: int, answer: BuildAnswer) -> None:
    """Replace it. Raises what the destination raises."""
    records.save(answer_name(generation), answer.to_json())


def withdraw(records: CoordinationRecords, generation: int, run: str | None = None) -> None:
    """No driver is to apply any more: remove the request, of this run alone where one is named. Raises what the
    destination raises."""
    request = load_request(records, generation)
    if run is None or (request is not None and request.run == run):
        records.save(request_name(generation), None)


def forget(records: CoordinationRecords, generation: int) -> None:
    """Remove an answer that is known. Raises what the destination raises."""
    records.save(answer_name(generation), None)


def has_driver(records: CoordinationRecords, generations: Collection[int], clock: Clock = SYSTEM_CLOCK) -> bool:
    """Whether a driver applies to one of a sink's generations, or is starting. To see that there is none may take
    seconds. Raises what the destination raises.
    """
    starting = records.load(STARTING_NAME)
    if running_of(records, generations, clock):
        return True
    return records.load(STARTING_NAME) not in (None, starting)
