"""Recognising whether the tables that a job prepared are still the same ones."""

from collections.abc import Collection, Mapping
from typing import Protocol

from cdc.model.table import TableName


class TableIdentities(Protocol):
    """Without it, a removed table is noticed when the destination refuses a batch, or never.

    Raises ``Unavailable`` and ``LockstepError``.
    """

    def identities(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        """Called when a job begins: the identity of each of these tables that exists, as text to be stored."""
        ...

    def lost(self, known: Mapping[TableName, str]) -> Mapping[TableName, str]:
        """Called when a job begins, every half minute after that, and before a switch: what became of lost tables.

        A table is lost if it isn't the one that ``identities`` described. It is no loss if rows and columns came and
        went, if the destination stores everything in another way, or if the whole destination was put back, progress
        included. A known identity of "" says nothing: such a table is lost only if it doesn't exist.
        """
        ...
