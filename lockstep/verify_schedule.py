"""Compares sinks with the source when that is due: one after the other, each in a process of its own."""

import logging
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from cdc.model.log_message import LogMessage
from lockstep.config import Config
from lockstep.console import start_command
from monitor.lag import LagReport

logger = logging.getLogger("lockstep.verify")

_STOP_S: Final = 20.0

Start = Callable[[str], "subprocess.Popen[bytes]"]


class VerifySchedule:
    """Looks at each lag report. When the last comparison was, it reads there: so a restart starts none too early."""

    def __init__(self, config: Config, path: Path, *, start: Start | None = None) -> None:
        """``path`` is the configuration's file, for the processes that it starts."""
        self._settings = config.verify
        self._sinks = tuple(config.sinks) if config.verify.every is not None else ()
        self._start = start or (lambda sink: _start(sink, path))
        self._began_ms: dict[str, int] = {}
        self._waiting: Mapping[str, str] = {}
        self._running: tuple[str, subprocess.Popen[bytes]] | None = None

    def look(self, report: LagReport, *, now_ms: int) -> None:
        """Start the comparison that is due for the longest time, unless one runs. Waits for nothing."""
        if self._running is not None:
            sink, process = self._running
            code = process.poll()
            if code is None:
                return
            logger.info("comparison ended sink=%s exit_code=%d", sink, code)
            self._running = None
        every_ms = self._settings.every_ms
        if every_ms is None:
            return
        due = {name: at_ms + every_ms for name, at_ms in self._last_ms(report).items() if at_ms + every_ms <= now_ms}
        waiting = {name: reason for name in due if (reason := self._reason(name, report, now_ms)) is not None}
        for name, reason in waiting.items():
            if self._waiting.get(name) != reason:
                logger.info(LogMessage("a comparison is due and waits", {"sink": name}, reason))
        self._waiting = waiting
        ready = due.keys() - waiting.keys()
        if ready:
            name = min(ready, key=lambda each: (due[each], each))
            self._began_ms[name] = now_ms
            logger.info("comparison begins sink=%s", name)
            self._running = name, self._start(name)

    def _reason(self, name: str, report: LagReport, now_ms: int) -> str | None:
        """Why a comparison of a sink can't begin now; None where it can. One that would fail counts as one."""
        if report.silent_servers:
            return "the source or Kafka doesn't answer"
        if name in report.unanswered:
            return "the sink doesn't answer"
        if not self._settings.may_begin(now_ms):
            return f"it is outside of {self._settings.between}, verify.between"
        return None

    def _last_ms(self, report: LagReport) -> Mapping[str, int]:
        """When the last comparison of each sink began that has a live generation; 0 where none did."""
        live = {
            stage.sink.name
            for stage in report.stages
            if stage.sink is not None and stage.sink.is_live and stage.sink.watermark_lsn and not stage.sink.joining
        }
        stored = {name: 0 if name not in report.verified else report.verified[name].began_ms for name in live}
        return {name: max(stored[name], self._began_ms.get(name, 0)) for name in self._sinks if name in live}

    def close(self) -> None:
        """End the comparison that runs. It begins anew when it is due."""
        if self._running is None:
            return
        _, process = self._running
        process.terminate()
        deadline = time.monotonic() + _STOP_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if process.poll() is None:
            process.kill()
            process.wait()


def _start(sink: str, path: Path) -> "subprocess.Popen[bytes]":
    # What it prints has keys of rows; what was found is kept in the sink.
    return start_command("verify", sink, config=path, stdout=subprocess.DEVNULL)
