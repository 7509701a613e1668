"""Posts rows in order, and distinguishes a row that its receiver refuses from a receiver that refuses everything.

Some statuses leave this open: with 404, the address may be wrong, or the receiver may not know the row's subject. Then
rows behind it are posted ahead until one is taken. If the row is refused again after that, the row is the cause. While
none is taken, the receiver is the cause, and the row waits. If there are too few rows behind it, the last taken row is
posted once more, with the same id, as it would be after a kill. No row is posted ahead of an earlier row of its key:
the earlier one would take the receiver back.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Final

from cdc.kafka.topic_reader import Record
from cdc.model.errors import Unavailable
from cdc.webhook import DocumentRefused, PerhapsRefused
from extensions.streams.jobs.refused_rows import REFUSED_IN_A_ROW_MAX

AHEAD_MAX: Final = REFUSED_IN_A_ROW_MAX - 1
"""At most this many rows behind a refused one are posted ahead without any being taken."""

_LOOKED_AT_MAX: Final = 10_000
"""At most this many rows behind a refused one are read in each try, in case most have the same keys."""

_TRIES: Final = 3
"""How often a row is posted before its refusal counts."""

_At = tuple[int, bytes]
"""Offset and key of a row: a topic that has lost records may have another row at this offset."""


class RowDelivery:
    """Delivers the rows of one topic. For one thread. ``post`` raises as ``Webhook.post``. ``pause`` gets the number of
    tries, waits before a row is posted again, and raises to end the delivery. ``received`` is called at each receipt,
    ``overtaken`` for a row that is taken after a later one.
    """

    def __init__(
        self,
        post: Callable[[Record], None],
        *,
        pause: Callable[[int], None],
        received: Callable[[], None],
        overtaken: Callable[[Record], None],
    ) -> None:
        self._post = post
        self._pause = pause
        self._received = received
        self._overtaken = overtaken
        self._ahead_max = 1
        self._taken = set[_At]()
        self._refused = set[_At]()
        """Rows that were refused before another one was taken."""
        self._last_taken: _At | None = None

    def refusal(self, row: Record, read: Callable[[int], Generator[Record, None, None]]) -> str | None:
        """The receiver's answer, as a status in words, if it refuses the row each time; None if it has the row.
        ``read`` reads the topic from an offset on. Raises Unavailable if the receiver may be the cause, and what
        ``post``, ``pause`` and ``read`` raise. Another call with the same row goes on with what is known.
        """
        at = row.offset, row.key
        self._taken = {each for each in self._taken if each[0] >= row.offset}
        self._refused = {each for each in self._refused if each[0] >= row.offset}
        if at in self._taken:
            return None
        refused = self._tried(row)
        if isinstance(refused, PerhapsRefused) and at not in self._refused:
            self._take_another(row, refused, read)
            self._refused.add(at)
            refused = self._tried(row)
            if refused is None:  # the receiver was the cause, perhaps for those as well
                self._refused.clear()
        return None if refused is None else refused.answer

    def _tried(self, row: Record) -> DocumentRefused | PerhapsRefused | None:
        """The refusal of each try; None if the receiver has the row."""
        tries = 0
        while True:
            try:
                self._post(row)
            except (DocumentRefused, PerhapsRefused) as refused:
                tries += 1
                if tries >= _TRIES:
                    return refused
            else:
                self._note_taken(row)
                return None
            self._pause(tries)

    def _note_taken(self, row: Record) -> None:
        self._received()
        self._last_taken = row.offset, row.key
        if any(offset > row.offset for offset, _ in self._taken):
            self._overtaken(row)

    def _take_another(
        self, first: Record, refused: PerhapsRefused, read: Callable[[int], Generator[Record, None, None]]
    ) -> None:
        """Return once the receiver takes a row other than the refused one. Raises Unavailable if it takes none. At
        first few rows are tried, so that a receiver that was away for a moment gets the rest in order.
        """
        not_taken, tried = set[_At](), 0
        with closing(read(first.offset + 1)) as rows:
            for row in islice(self._first_of_each_key(first.key, rows), self._ahead_max):
                tried += 1
                try:
                    self._post(row)
                except PerhapsRefused:
                    not_taken.add((row.offset, row.key))
                except DocumentRefused:  # no evidence about the first row; it counts when it is this row's turn
                    pass
                else:
                    self._note_taken(row)
                    self._taken.add((row.offset, row.key))
                    self._refused |= not_taken
                    self._ahead_max = 1
                    return
                self._pause(0)
        if tried < self._ahead_max and self._is_last_taken_again(read):
            self._refused |= not_taken
            return
        self._ahead_max = min(self._ahead_max * 2, AHEAD_MAX)
        raise Unavailable(
            f"{refused.message}, and has taken no other row since, which would show that the row is the cause",
            hint="mend the receiver, or the query's `webhook`; where it is the row, it becomes a rejection once the"
            " receiver has taken another one",
        )

    def _first_of_each_key(self, refused_key: bytes, rows: Iterable[Record]) -> Iterator[Record]:
        """The rows behind a refused one that wait for no earlier row of their key."""
        waiting = {refused_key}
        for row in islice(rows, _LOOKED_AT_MAX):
            if row.value is None or (row.offset, row.key) in self._taken or row.key in waiting:
                continue
            waiting.add(row.key)
            yield row

    def _is_last_taken_again(self, read: Callable[[int], Generator[Record, None, None]]) -> bool:
        """Whether the receiver takes the last taken row once more. False if the topic has a tombstone of it since."""
        if self._last_taken is None:
            return False
        offset, key = self._last_taken
        with closing(read(offset)) as rows:
            of_key = [row for row in rows if row.key == key]
        if not of_key or of_key[0].offset != offset or of_key[-1].value is None:
            return False
        try:
            self._post(of_key[0])
        except (PerhapsRefused, DocumentRefused):  # the receiver may refuse repetitions
            return False
        self._received()
        return True
