"""Checks that a build's inputs are still those that it was begun with."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from cdc.model.errors import LockstepError, PositionMismatch, Unavailable
from cdc.model.table import TableName
from lockstep.config import Config
from lockstep.rebuild.build_inputs import (
    BuildInputs,
    incompatible_change,
    read_inputs,
    recreated_topics,
    recreated_topics_error,
)
from lockstep.rebuild.outcome import InputsChanged

_EVERY_S: Final = 5.0


class InputsWatch:
    """Compares the present inputs with ``begun``, which has no shapes if tables may change. ``again`` are the commands
    that begin a build again after its topics were recreated. ``changed`` is the change that was seen, if any."""

    def __init__(
        self, config: Config, tables: Sequence[TableName], begun: BuildInputs, *, again: Sequence[str]
    ) -> None:
        self.begun = begun
        self.changed: InputsChanged | None = None
        self._config = config
        self._tables = tables
        self._again = again
        self._due = time.monotonic() + _EVERY_S

    def check(self, now: BuildInputs) -> InputsChanged | None:
        """An incompatible change, if there is one. Raises PositionMismatch if topics were recreated."""
        recreated = recreated_topics(self.begun, now)
        if recreated:
            raise recreated_topics_error(self._config, recreated, commands=self._again)
        why = incompatible_change(self.begun, now)
        if why is not None:
            self.changed = InputsChanged(why)
        return self.changed

    def look(self) -> InputsChanged | None:
        """Read the inputs and check them. Raises as ``check``, and Unavailable."""
        return self.check(read_inputs(self._config, self._tables))

    def look_if_due(self) -> InputsChanged | None:
        """The same every few seconds. Raises as ``check``; an unavailable input is read later."""
        if self.changed is None and time.monotonic() >= self._due:
            self._due = time.monotonic() + _EVERY_S
            with suppress(Unavailable):
                self.look()
        return self.changed


def cause_in_inputs(
    failure: LockstepError, watch: InputsWatch, check_not_trimmed: Callable[[], None]
) -> InputsChanged | None:
    """The change in a build's inputs that made it fail, if one is found. Raises PositionMismatch if topics were
    recreated or trimmed."""
    with suppress(Unavailable):
        if not isinstance(failure, Unavailable) and (changed := watch.look()) is not None:
            return changed
        if isinstance(failure, PositionMismatch):
            check_not_trimmed()
    return None
