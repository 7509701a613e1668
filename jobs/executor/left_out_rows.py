"""Rows of a view's tables that capture left out: which of them the driver must know. Pure."""

from collections.abc import Iterable, Mapping

from jobs.executor.result import RejectedEvent

_Row = tuple[str, bytes]


class LeftOutRows:
    """Left-out rows among the records, until the driver has stored them. ``rejected`` are rows newly left out.
    ``resolved`` were known to be left out and have come since."""

    def __init__(self) -> None:
        self._left: dict[_Row, RejectedEvent] = {}
        self._come: set[_Row] = set()

    def __bool__(self) -> bool:
        return bool(self._left or self._come)

    @property
    def rejected(self) -> list[RejectedEvent]:
        return list(self._left.values())

    @property
    def resolved(self) -> set[_Row]:
        return self._come - self._left.keys()

    def take(self, left: Iterable[RejectedEvent], tags: Mapping[_Row, str], known: Mapping[_Row, str]) -> None:
        """Take further records: these rows are left out, and others came with these tags. ``known`` has the tags of the
        rejections that the driver has stored."""
        self._come |= {row for row, tag in known.items() if tags.get(row, "") > tag}
        self._left |= {(event.position.topic, event.key): event for event in left}
        self._left = {
            row: event
            for row, event in self._left.items()
            # Only a newer row closes a rejection, whatever is left out meanwhile. After that it is another rejection.
            if event.tag > max(tags.get(row, ""), known.get(row, "")) and (row not in known or row in self._come)
        }

    def forget(self) -> None:
        """The driver has stored all of it."""
        self._left, self._come = {}, set()
