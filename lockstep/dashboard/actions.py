"""What the page can have done: commands of ``lockstep``, run as processes of their own, so they do what they always do.

A command that takes longer goes on beside the page, and ends with the dashboard. One of a kind runs at a time.
"""

import collections
import logging
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from cdc.model.errors import LockstepError
from lockstep.console import start_command
from lockstep.dashboard.documents import told_of, verify_run
from lockstep.dashboard.model import Done, VerifyRun
from lockstep.dashboard.sampler import Log, now_ms

logger = logging.getLogger("lockstep.dashboard")

_ANSWER_S: Final = 20.0
"""So long a page waits for a command to end; after that it is told that it goes on."""

_AT_ONCE: Final = 4
_VERIFY_RUNS: Final = 50
_TOLD: Final = 2000
"""So many characters of a command's messages are shown: its last ones say how it ended."""

_OUTPUT_MAX: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Action:
    """A command with its arguments. ``name`` and ``subject`` are what the log calls it.

    Arguments are our own words and names that the configuration knows, or stand behind a ``=``: none is an option that
    nobody meant.
    """

    name: str
    subject: str
    arguments: tuple[str, ...]


class Actions:
    """Runs commands, and remembers what was asked for and how it ended."""

    def __init__(self, path: Path, log: Log) -> None:
        """``path`` is the configuration file that the commands get."""
        self._path = path
        self._log = log
        self._lock = threading.Lock()
        self._running: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self._verified: collections.deque[VerifyRun] = collections.deque(maxlen=_VERIFY_RUNS)
        # The kernel ends a child with the thread that started it: this one lives as long as we do.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="starter")

    def run(self, action: Action, *, asked_by: str) -> Done:
        """Have it done, and say how it ended, or after some time that it goes on.

        Raises LockstepError where the same runs already, or too much does.
        """
        ended = threading.Event()
        outcome: list[Done] = []

        def on_end(done: Done) -> None:
            outcome.append(done)
            ended.set()

        self.start(action, asked_by=asked_by, on_end=on_end)
        if ended.wait(_ANSWER_S):
            return outcome[0]
        return Done(ok=True, message=f"`{_text(action)}` runs. The log says how it ends.")

    def start(self, action: Action, *, asked_by: str, on_end: Callable[[Done], object] = lambda _: None) -> None:
        """The same, and wait for nothing."""
        key = (action.name, action.subject)
        with self._lock:
            if key in self._running:
                raise LockstepError(f"{action.name} of {action.subject} runs already", hint="the log says how it ends")
            if len(self._running) >= _AT_ONCE:
                raise LockstepError(f"{_AT_ONCE} actions run already", hint="wait until one of them has ended")
            # Its audit line comes before it begins.
            logger.info("action=%s subject=%s asked_by=%s", action.name, action.subject, asked_by)
            self._log.add("action", f"{action.name} of {action.subject}, asked for from {asked_by}")
            output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  closed by _wait
            self._running[key] = process = self._starter.submit(self._spawn, action, output, errors).result()
        waiter = threading.Thread(target=self._wait, args=(key, action, process, output, errors, on_end), daemon=True)
        waiter.start()

    @property
    def is_busy(self) -> bool:
        """Whether a command runs."""
        return bool(self._running)

    def verified(self) -> tuple[VerifyRun, ...]:
        """Comparisons that have ended, newest first."""
        return tuple(self._verified)

    def close(self, *, wait_s: float = 0.4) -> None:
        """Tell every command that still runs to stop. One that takes longer ends by itself, not with us."""
        with self._lock:
            processes = list(self._running.values())
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + wait_s
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._starter.shutdown(wait=False)

    def _spawn(self, action: Action, output: IO[bytes], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        return start_command(*action.arguments, config=self._path, stdout=output, stderr=errors)

    def _wait(
        self,
        key: tuple[str, str],
        action: Action,
        process: subprocess.Popen[bytes],
        output: IO[bytes],
        errors: IO[bytes],
        on_end: Callable[[Done], object],
    ) -> None:
        began = time.monotonic()
        code = process.wait()
        said, told = _read(output), _read(errors).decode(errors="replace").strip()[-_TOLD:]
        text = told or ("It is done." if code == 0 else f"It ended with exit code {code}.")
        if action.name == "verify":
            _, sink, *options = action.arguments
            table = options[options.index("--table") + 1] if "--table" in options else None
            run = verify_run(sink, said, finished_ms=now_ms(), seconds=time.monotonic() - began, table=table)
            self._verified.appendleft(run)
            text = told_of(run) or text
        done = Done(ok=code == 0, message=text)
        with self._lock:
            del self._running[key]
        logger.info("action=%s subject=%s exit_code=%d", action.name, action.subject, code)
        ending = "is done" if done.ok else f"ended with exit code {code}"
        self._log.add("action", f"{action.name} of {action.subject} {ending}: {text}")
        on_end(done)


def _text(action: Action) -> str:
    return " ".join(["lockstep", *action.arguments])


def _read(file: IO[bytes]) -> bytes:
    with file:
        file.seek(0)
        return file.read(_OUTPUT_MAX)


def of_copy(verb: str, table: str) -> Action:
    """Copy a table anew, or pause, resume or cancel that."""
    return Action("copy" if verb == "table" else f"{verb}_copy", table, ("snapshot", verb, table))


def of_sink(verb: str, sink: str, *options: str) -> Action:
    """Rebuild a sink, or switch its readers."""
    return Action("_".join([verb, *(option.strip("-") for option in options)]), sink, (verb, sink, *options))


def of_rejections(verb: str, sink: str, reason: str) -> Action:
    """Retry or discard the rejections that have this in their reason."""
    options: Sequence[str] = ("--yes",) if verb == "discard" else ()
    return Action(verb, sink, ("rejections", verb, sink, f"--reason={reason}", *options))


def of_verify(sink: str, table: str | None = None, *, repair: bool = False) -> Action:
    """Compare a sink with the source, all of it or one table."""
    options = ["--json", *([] if table is None else ["--table", table]), *(["--repair"] if repair else [])]
    subject = sink if table is None else f"{table} in {sink}"
    return Action("verify" if not repair else "repair", subject, ("verify", sink, *options))
