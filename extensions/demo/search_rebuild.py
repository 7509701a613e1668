"""Rebuilds the demo's search index with another mapping in the middle of the traffic, unnoticed by its readers."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cdc.model.errors import LockstepError
from cdc.model.timeouts import DEMO_STILL_S
from extensions.demo.children import Children
from extensions.demo.directory import shown
from extensions.demo.interrupt import Interrupts
from extensions.demo.settings import SEARCH, configuration
from lockstep.config import load
from sinks.registry import open_sink
from stack.stack import Endpoints

CHILD: Final = "rebuild"

_AFTER_S: Final = 20.0
"""The default if the demo has no time limit; otherwise it is half of that limit."""


class SearchRebuild:
    """Starts the rebuild when it is due, and watches its end. ``seconds`` is the demo's time limit."""

    def __init__(
        self,
        config_file: Path,
        children: Children,
        interrupts: Interrupts,
        *,
        seconds: float | None,
        say: Callable[[str], None],
    ) -> None:
        self._config_file = config_file
        self._children = children
        self._interrupts = interrupts
        self._after_s = _AFTER_S if seconds is None else seconds / 2
        self._say = say
        self._began: float | None = None
        self._log_bytes = 0
        self._heard_at = 0.0
        self._is_done = False

    def step(self, endpoints: Endpoints, traffic_s: float | None) -> None:
        """Start the rebuild in the middle of the traffic, or watch it. Raises LockstepError when it fails."""
        if self._is_done:
            return
        if self._began is None:
            if traffic_s is not None and traffic_s >= self._after_s:
                self._began = self._heard_at = time.monotonic()
                listen = load(self._config_file).dashboard.listen
                text = configuration(endpoints, listen=listen, mapping_has_changed=True)
                self._config_file.write_text(text, encoding="utf-8")
                command = ["rebuild", SEARCH, "--switch", "--config", str(self._config_file)]
                typed = [*command[:-1], str(shown(self._config_file))]
                self._say(f"{SEARCH} is to have another mapping: lockstep {' '.join(typed)}")
                with self._interrupts.deferred():
                    self._children.start(CHILD, "lockstep", command, may_end=True)
        elif self._children.has_ended(CHILD):
            self._check_switched()
            self._is_done = True
            self._say(f"readers of {SEARCH} see generation 2; back to the first: lockstep switch {SEARCH} --back")
        elif self._silent_s() > DEMO_STILL_S:
            raise LockstepError(
                f"the rebuild has written nothing into its log for {DEMO_STILL_S:.0f} s",
                hint=f"its log says how far it is: {self._children.log(CHILD)}",
            )

    def _silent_s(self) -> float:
        log_bytes, now = self._children.log(CHILD).stat().st_size, time.monotonic()
        if log_bytes != self._log_bytes:
            self._log_bytes, self._heard_at = log_bytes, now
        return now - self._heard_at

    @property
    def is_under_way(self) -> bool:
        return self._began is not None and not self._is_done

    def next(self, traffic_s: float | None) -> str:
        """What it does next; "" once it is done."""
        if self._is_done:
            return ""
        if self._began is not None:
            return f"{SEARCH} is built anew, and its readers are switched to that"
        wait_s = max(0.0, self._after_s - (traffic_s or 0.0))
        return f"in {wait_s:.0f} s {SEARCH} gets another mapping, and is rebuilt beside its readers"

    def _check_switched(self) -> None:
        config = load(self._config_file)
        opened = open_sink(SEARCH, config.sinks[SEARCH], 1)
        try:
            if opened.generations.live() == 1:
                raise self._children.failure(CHILD)
        finally:
            opened.sink.close()
