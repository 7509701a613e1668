"""The watermark to store: it doesn't move while it isn't true of older rows. Pure.

A reader that waits for a watermark expects all tables of the sink as of then. So a table that isn't read holds it,
unless it was excluded on purpose: ``HeldTable.holds_watermark`` in ``jobs.generations.held_tables``.
"""

from collections.abc import Collection

from jobs.query.watermark import Watermark


class HeldWatermark:
    """One sink's watermark. It stays where it is while rows lack columns, and for good while a table isn't read."""

    def __init__(
        self, watermark: Watermark, read_topics: Collection[str], *, lacks_columns: bool, waits_for_table: bool
    ) -> None:
        self._watermark = watermark
        self._read_topics = read_topics
        self._lacks_columns = lacks_columns
        self._waits_for_table = waits_for_table
        self._held = watermark.twin()

    def release(self) -> None:
        """Older rows are now as at the source."""
        self._lacks_columns = False

    @property
    def position(self) -> Watermark:
        return self._held if self._lacks_columns or self._waits_for_table else self._watermark

    @property
    def joining(self) -> tuple[str, ...]:
        """The topics for which the stored watermark isn't true yet. While it waits for an unread table, the topics that
        are read may have reached it. While rows lack columns, that is unknown."""
        if self._lacks_columns or not self._waits_for_table:
            return self.position.joining
        behind = self._watermark.joining
        return tuple(at for at in self._held.joining if at not in self._read_topics or at in behind)
