"""Posts rows in their order, and tells a row that its receiver refuses from a receiver that refuses all.

Some statuses say neither: with 404 the address may be wrong, or the row of something that the receiver doesn't know.
Then the rows behind it are posted ahead until one is taken. If the row is refused again after that, it is the row. As
long as none is taken, it is the receiver, and the row waits. Without a row behind it that could tell, the last one that
was taken is posted once more: it comes again with the same id, as it would after a kill. No row is posted ahead of an
earlier one of its key: the receiver would go back with that one.
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
"""So many rows behind one are posted ahead at most, none of which is taken."""

_LOOKED_AT_MAX: Final = 10_000
"""So many rows behind one are looked at in each try, where most have the same keys."""

_TRIES: Final = 3
"""How often a row is posted that the receiver refuses, before that counts."""

_At = tuple[int, bytes]
"""Offset and key of a row: a topic that has lost records may have another row there."""


class RowDelivery:
    """Delivers the rows of one topic. For one thread.

    ``post`` raises as ``Webhook.post``. ``pause`` waits before a row is posted once more, for longer with each of its
    tries, and raises whatever is to end the delivery. ``received`` is called at each receipt, and ``overtaken`` for a
    row that is taken after one behind it.
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
        """Why the receiver refuses the row each time, as its status in words; None where it has it.

        ``read`` reads the topic from an offset on. Raises Unavailable where the receiver may be to blame, and what
        ``post``, ``pause`` and ``read`` raise. Whoever calls it again with the same row goes on with what is known.
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
            if refused is None:  # so it was the receiver, and it may have been for those as well
                self._refused.clear()
        return None if refused is None else refused.answer

    def _tried(self, row: Record) -> DocumentRefused | PerhapsRefused | None:
        """What the receiver says each time, None where it has the row."""
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
        """Return once the receiver takes another row than the one that it has refused. Raises Unavailable without one.

        Few are tried at first: a receiver that was away for a moment gets the rest in order.
        """
        not_taken, tried = set[_At](), 0
        with closing(read(first.offset + 1)) as rows:
            for row in islice(self._first_of_each_key(first.key, rows), self._ahead_max):
                tried += 1
                try:
                    self._post(row)
                except PerhapsRefused:
                    not_taken.add((row.offset, row.key))
                except DocumentRefused:  # it says nothing of the other one, and counts once it is that row's turn
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
        """Of the rows behind a refused one those that no row of their key waits before."""
        waiting = {refused_key}
        for row in islice(rows, _LOOKED_AT_MAX):
            if row.value is None or (row.offset, row.key) in self._taken or row.key in waiting:
                continue
            waiting.add(row.key)
            yield row

    def _is_last_taken_again(self, read: Callable[[int], Generator[Record, None, None]]) -> bool:
        """Whether the receiver takes once more what it took last. False where the topic has a tombstone of it since."""
        if self._last_taken is None:
            return False
        offset, key = self._last_taken
        with closing(read(offset)) as rows:
            of_key = [row for row in rows if row.key == key]
        if not of_key or of_key[0].offset != offset or of_key[-1].value is None:
            return False
        try:
            self._post(of_key[0])
        except (PerhapsRefused, DocumentRefused):  # it may not want one twice
            return False
        self._received()
        return True
