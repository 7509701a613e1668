"""Telling the tables that a job has prepared from whatever takes their place."""

from collections.abc import Collection, Mapping
from typing import Protocol

from cdc.model.table import TableName


class TableIdentities(Protocol):
    """Without it, a table that somebody has removed is noticed when the destination refuses a batch, or never.

    Raises ``Unavailable`` and ``LockstepError``.
    """

    def identities(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        """Called when a job begins: by what each of these tables of this generation is known, as text to be stored.

        A table that isn't there isn't in it.
        """
        ...

    def lost(self, known: Mapping[TableName, str]) -> Mapping[TableName, str]:
        """Called when a job begins, every half minute after, and before a switch: what has become of lost tables.

        Those are the tables that aren't the ones any more that ``identities`` has told. Rows and columns may have come
        and gone, and the destination may have stored all of it in another way: that is no loss. Nor is it one where the
        whole destination was put back, progress included. Where nothing is known of a table, as "", a loss is only that
        it isn't there.
        """
        ...
