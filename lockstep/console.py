"""What every command shares: messages to people, logging, stopping on signals, exit codes.

Standard output belongs to the result, standard error to messages, so that ``--json`` can be piped.
"""

import logging
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

import click
from rich.console import Console

from cdc.model.errors import ConfigurationError, LockstepError
from stack.errors import StackError

EXIT_FAILED = 1
EXIT_CONFIGURATION = 2

out = Console()
err = Console(stderr=True)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Plain lines with the time, for people and log collectors alike."""
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(message)s")
    for chatty in ("py4j", "opensearch", "urllib3", "alembic"):
        logging.getLogger(chatty).setLevel(logging.ERROR)


def say(message: str) -> None:
    """A sentence for whoever runs the command."""
    err.print(message, markup=False, highlight=False, soft_wrap=True)


def exit_code_of(run: Callable[[], int | None]) -> int:
    """Run a command; its own errors become a message and an exit code, a bug keeps its traceback."""
    try:
        return run() or 0
    except ConfigurationError as error:
        say(f"error: {error}")
        return EXIT_CONFIGURATION
    except (LockstepError, StackError) as error:
        say(f"error: {error}")
        return EXIT_FAILED
    except click.ClickException as error:
        error.show()
        return EXIT_CONFIGURATION
    except (KeyboardInterrupt, click.Abort):
        return 130


class StopOnSignals:
    """Set by the first SIGTERM or SIGINT; the work in hand is finished first. A second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self._event = threading.Event()
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)

    def __call__(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but not beyond the signal; True when it came."""
        return self._event.wait(seconds)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._event.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._event.set()
