"""Somebody has asked to stop in the middle, also while a server or a job is waited for."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cdc.model.errors import LockstepError
from sinks.wrappers.retrying import Retries

_LOOK_EVERY_S: Final = 0.5
_PATIENCE_S: Final = 10.0
"""How long a server that doesn't answer is asked again."""


class Stopped(LockstepError):
    """It isn't done, and may be begun again."""


def stopped() -> LockstepError:
    """The error for who was asked to stop in the middle."""
    return Stopped("stopped before it was done", hint="run the same command again: it goes on")


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waits between two looks. ``check`` raises Stopped where somebody has asked to stop, and is called before each."""

    check: Callable[[], None]

    def wait(self) -> None:
        self.check()
        time.sleep(_LOOK_EVERY_S)

    def retries(self) -> Retries:
        """For a sink whose server doesn't answer for a while."""
        return Retries(
            sleep=time.sleep,
            monotonic=time.monotonic,
            random=random.random,
            on_wait=lambda _: self.check(),
            give_up_after_s=_PATIENCE_S,
        )
