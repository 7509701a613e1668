"""A destination whose calls wait while its server can't serve. Only this module of the sinks sleeps."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar, cast

from cdc.model.errors import DataLost, Unavailable
from sinks.contract import OpenedSink

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Target = TypeVar("_Target")

# Long enough to spare a server that is coming back, short enough that a job goes on soon after.
WAIT_MAX_S: Final = 30.0

# A reader already has some of the rows, and closing a sink must not wait.
_NOT_REPEATED: Final = frozenset({"scan", "rows", "close"})


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that waits: why, how often it has tried, the next wait, and the time since the first try."""

    reason: str
    attempts: int
    wait_s: float
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How calls are repeated while they raise ``Unavailable``. All other errors pass through, also ``DataLost``.

    The wait starts at the error's ``retry_after_s`` and doubles up to ``wait_max_s``. It is shortened at random by up
    to a half, so that many jobs don't return at the same moment. ``on_wait`` is called before each wait. With
    ``give_up_after_s`` the last ``Unavailable`` is raised once the next wait would end beyond it; without, calls are
    repeated for ever.
    """

    sleep: Callable[[float], None]
    monotonic: Callable[[], float]
    random: Callable[[], float]
    on_wait: Callable[[Waiting], None]
    give_up_after_s: float | None = None
    wait_max_s: float = WAIT_MAX_S

    def call(
        self, method: Callable[_Parameters, _Result], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> _Result:
        """Call the method and return its result. Raises its errors, but ``Unavailable`` only after giving up."""
        began = self.monotonic()
        attempts = 0
        while True:
            try:
                return method(*args, **kwargs)
            except DataLost:
                raise  # the caller begins again: this call can't succeed
            except Unavailable as error:
                attempts += 1
                elapsed_s = self.monotonic() - began
                # The exponent is bounded: after a night of waiting 2**attempts would not fit a float.
                longest_s = min(self.wait_max_s, error.retry_after_s * 2.0 ** min(attempts - 1, 20))
                wait_s = longest_s * (1 - self.random() / 2)
                if self.give_up_after_s is not None and elapsed_s + wait_s > self.give_up_after_s:
                    raise
                self.on_wait(Waiting(error.message, attempts, wait_s, elapsed_s))
                self.sleep(wait_s)


def retrying(opened: OpenedSink, retries: Retries) -> OpenedSink:
    """The destination with retries, except for ``scan``, ``rows`` and ``close``. Steps are gone: they can't repeat."""
    return OpenedSink(
        _repeating(opened.sink, retries),
        _repeating(opened.generations, retries),
        _repeating(opened.records, retries),
        _repeating(opened.bulk, retries),
        _repeating(opened.erasing, retries),
        _repeating(opened.identities, retries),
        _repeating(opened.refreshing, retries),
    )


def _repeating(target: _Target, retries: Retries) -> _Target:
    return target if target is None else cast("_Target", _Repeating(target, retries))


class _Repeating:
    def __init__(self, target: object, retries: Retries) -> None:
        self._target = target
        self._retries = retries

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)
        return method if name in _NOT_REPEATED else partial(self._retries.call, method)
