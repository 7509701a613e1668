"""What every command shares: messages to people, logging, stopping on signals, exit codes.

Results go to standard output and messages to standard error, so that ``--json`` can be piped.
"""

import errno
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, TextIO

from cdc.model.errors import ConfigurationError, Fenced, LockstepError, Unavailable
from cdc.model.printable import visible_lines
from lockstep.log import formatter, log_format
from stack.errors import StackError

_logger = logging.getLogger("lockstep")

EXIT_FAILED = 1
EXIT_CONFIGURATION = 2
EXIT_TAKEN_OVER = 3
"""Another process does the same. Restarting this one would make the two take over from each other without end."""
EXIT_UNWATCHED = 4
"""What is shown is only as new as the last look of a process that has ended, or hangs."""
EXIT_LEFT = 5
"""For ``erase``: something is left of the row, and its end is known."""
EXIT_INTERRUPTED = 130
"""What a shell reports for a program that Ctrl-C ended."""

SUPERVISOR_VARIABLE = "LOCKSTEP_SUPERVISOR_PID"
"""Set for the processes of ``lockstep run``: the process that they belong to."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


class _JsonHandler(logging.StreamHandler[TextIO]):
    """While this is set up, messages to people become records of the log too: its readers are programs."""


def start_command(
    *arguments: str,
    config: Path,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command of ours on this configuration's file, in a session of its own: Ctrl-C reaches us alone. The
    kernel ends it with the thread that started it, however that thread ends."""
    return subprocess.Popen(
        [sys.executable, "-m", "lockstep", *arguments, "--config", str(config)],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, SUPERVISOR_VARIABLE: str(os.getpid())},
        start_new_session=True,
    )


def log_to_stderr() -> None:
    """Send this process's messages to standard error. Raises ConfigurationError as ``log_format``."""
    chosen = log_format()
    to_stderr = _JsonHandler(sys.stderr) if chosen == "json" else logging.StreamHandler(sys.stderr)
    to_stderr.setFormatter(formatter(chosen))
    logging.basicConfig(handlers=[to_stderr], level=logging.INFO)
    for chatty in ("py4j", "opensearch", "urllib3", "alembic"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    if chosen == "json":
        logging.captureWarnings(capture=True)
        sys.excepthook = _log_bug
        threading.excepthook = lambda bug: _log_bug(bug.exc_type, bug.exc_value, bug.exc_traceback)


def _log_bug(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    _logger.critical("%s", kind.__name__, exc_info=(kind, error or kind(), trace))


def say(message: str, *, level: int = logging.INFO) -> None:
    """Say a sentence to the user on standard error, or add a record of this level to a JSON log."""
    if any(isinstance(handler, _JsonHandler) for handler in logging.getLogger().handlers):
        _logger.log(level, "%s", message)
    else:
        sys.stderr.write(visible_lines(message) + "\n")  # at once: threads say things too
        sys.stderr.flush()


def exit_code_of(run: Callable[[], int | None]) -> int:
    """Run a command and flush its output. Our own errors, and the system's about files, become a message and an exit
    code. A bug keeps its traceback."""
    try:
        code = _of_source(run) or 0
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except ConfigurationError as error:
        _say_error(str(error))
        return EXIT_CONFIGURATION
    except Fenced as error:
        _say_error(str(error))
        return EXIT_TAKEN_OVER
    except Unavailable as error:
        _say_error(f"{error.message}\n{error.hint or '`lockstep doctor` looks at every server and says what to do'}")
        return EXIT_FAILED
    except (LockstepError, StackError) as error:
        _say_error(str(error))
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `lockstep lag | head -1`: the reader has seen enough
        _discard_output()
        return EXIT_FAILED
    except OSError as error:  # the operator can mend a file's trouble; a server's would be a bug
        if error.errno in _FULL:
            # A failed write doesn't name its file: most are our output, or go to temporary files.
            where = error.filename or f"standard output, or a file in {tempfile.gettempdir()}"
            _say_error(f"{where}: {error.strerror}")
            _discard_output()
            return EXIT_FAILED
        if error.filename is None:
            raise
        _say_error(f"{error.filename}: {error.strerror}\ncheck the path and its permissions")
        return EXIT_FAILED


def _say_error(message: str) -> None:
    say(f"error: {message}", level=logging.ERROR)


def _of_source(run: Callable[[], int | None]) -> int | None:
    """Turn PostgreSQL's errors into ours, except syntax errors, which are bugs."""
    try:
        return run()
    except Exception as error:
        psycopg = sys.modules.get("psycopg")  # commands that ask no database don't load it
        if psycopg is None or not isinstance(error, psycopg.Error) or isinstance(error, psycopg.errors.SyntaxError):
            raise
        from cdc.postgres.connection import connection_error

        raise connection_error(error) from error


def _discard_output() -> None:
    """Drop what is still buffered: Python flushes at exit, and would complain about the closed pipe again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())


class StopOnSignals:
    """Set by the first SIGTERM, SIGINT or SIGHUP; the work in hand is finished first.

    A second SIGINT raises KeyboardInterrupt at once. If ``interrupts`` is false it raises nothing and only sets
    ``is_urgent``, for callers that must clean up even then.
    """

    def __init__(self, *, interrupts: bool = True) -> None:
        self._event = threading.Event()
        self._interrupts = interrupts
        self._urgent = False
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup it goes on without its terminal
            signal.signal(signal.SIGHUP, self._stop)

    def __call__(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep at most until the signal; True if it came."""
        return self._event.wait(seconds)

    def is_urgent(self) -> bool:
        return self._urgent

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._event.is_set() and number == signal.SIGINT:
            self._urgent = True
            if self._interrupts:
                raise KeyboardInterrupt
        self._event.set()
