"""The state of alerts on disk: what was reported, and what is to be delivered. Only the process that holds
``monitor.reporter_lock`` uses ``state.json``.
"""

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from cdc.model.errors import LockstepError
from extensions.alerts.due_messages import Entry, Message
from monitor.conditions import Key
from monitor.reporter_lock import give_to_owner, unusable

_FORMAT: Final = 3


@dataclass(frozen=True, slots=True)
class State:
    """``queue`` has the messages to deliver, oldest first; None if there was no webhook."""

    book: Mapping[Key, Entry] = field(default_factory=dict)
    queue: Sequence[Message] | None = None


class AlertStore:
    """The directory of a pipeline's alerts. Every method raises LockstepError for a file that can't be used."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / "state.json"

    def load(self) -> State:
        path = self._file
        try:
            document = orjson.loads(path.read_bytes())
            if document["format"] != _FORMAT:
                raise LockstepError(f"{path} is of another version of Lockstep", hint="use that one, or move it away")
            return _state(document)
        except FileNotFoundError:
            return State()
        except OSError as error:
            raise unusable(self._directory, error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # no JSON, or JSON of another shape
            raise LockstepError(
                f"{path} is damaged", hint="move it away: open alerts are reported once more"
            ) from error

    def save(self, state: State) -> None:
        """The state is on disk when this returns."""
        document = {
            "format": _FORMAT,
            "open": [entry.to_json() for entry in state.book.values()],
            "queue": None if state.queue is None else [message.to_json() for message in state.queue],
        }
        try:
            handle, temporary = tempfile.mkstemp(dir=self._directory, prefix=f".{self._file.name}.")
            try:
                with os.fdopen(handle, "wb") as file:
                    give_to_owner(handle, self._directory)
                    file.write(orjson.dumps(document))
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).replace(self._file)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()
                raise
        except OSError as error:
            raise unusable(self._directory, error) from error


def _state(document: Mapping[str, Any]) -> State:
    entries = [Entry.from_json(entry) for entry in document["open"]]
    queue = document["queue"]
    if queue is not None:
        queue = [Message.from_json(message) for message in queue]
    return State({entry.condition.key: entry for entry in entries}, queue)
