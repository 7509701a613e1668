"""Posts rows in their order, and tells a row that its receiver refuses from a receiver that refuses all.

Some statuses say neither: with 404 the address may be wrong, or the row of something that the receiver doesn't know.
Then the rows behind it are posted ahead until one is taken. If the row is refused again after that, it is the row. As
long as none is taken, it is the receiver, and the row waits. No row is posted ahead of an earlier one of its key: the
receiver would go back with that one.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Final

from cdc.kafka.topic_reader import Record
from cdc.model.errors import Unavailable
from cdc.webhook import DocumentRefused, PerhapsRefused
from jobs.streams.refused_rows import REFUSED_IN_A_ROW_MAX

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
        """Rows that were refused before one behind them was taken."""

    def refusal(self, row: Record, behind: Callable[[], Generator[Record, None, None]]) -> str | None:
        """Why the receiver refuses the row each time, as its status in words; None where it has it.

        ``behind`` reads the rows behind it, in order. Raises Unavailable where the receiver may be to blame, and what
        ``post``, ``pause`` and ``behind`` raise. Whoever calls it again with the same row goes on with what is known.
        """
        at = row.offset, row.key
        self._taken = {each for each in self._taken if each[0] >= row.offset}
        self._refused = {each for each in self._refused if each[0] >= row.offset}
        if at in self._taken:
            return None
        refused = self._tried(row)
        if isinstance(refused, PerhapsRefused) and at not in self._refused:
            self._take_one_behind(row.key, refused, behind)
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
        if any(offset > row.offset for offset, _ in self._taken):
            self._overtaken(row)

    def _take_one_behind(
        self, refused_key: bytes, refused: PerhapsRefused, behind: Callable[[], Generator[Record, None, None]]
    ) -> None:
        """Return once the receiver has a row behind the one that it has refused. Raises Unavailable where it has none.

        Few are tried at first: a receiver that was away for a moment gets the rest in order.
        """
        not_taken = set[_At]()
        with closing(behind()) as rows:
            for row in islice(self._first_of_each_key(refused_key, rows), self._ahead_max):
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
        self._ahead_max = min(self._ahead_max * 2, AHEAD_MAX)
        raise Unavailable(
            f"{refused.message}, and has taken no row behind this one which would tell that it is the row",
            hint="mend the receiver, or the query's `webhook`; where it is the row, it becomes a rejection once the"
            " receiver has taken one behind it",
        )

    def _first_of_each_key(self, refused_key: bytes, rows: Iterable[Record]) -> Iterator[Record]:
        """Of the rows behind a refused one those that no row of their key waits before."""
        waiting = {refused_key}
        for row in islice(rows, _LOOKED_AT_MAX):
            if row.value is None or (row.offset, row.key) in self._taken or row.key in waiting:
                continue
            waiting.add(row.key)
            yield row
