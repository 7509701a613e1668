"""Findings about the room for locks: reading all of a partitioned table locks each partition and each index."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psycopg

from cdc.model.finding import Finding, error, warning
from cdc.postgres.preflight.catalogue_facts import PARTITIONED, Relation


@dataclass(frozen=True, slots=True)
class LockTable:
    """The lock table that all sessions share: its size is a number of locks per possible session."""

    locks_per_session: int
    sessions: int

    @property
    def size(self) -> int:
        return self.locks_per_session * self.sessions


def load_lock_table(connection: psycopg.Connection[Any]) -> LockTable:
    """The server's lock table. PostgreSQL also counts its own processes, so there is a little more room."""
    row = connection.execute(
        "select current_setting('max_locks_per_transaction')::int,"
        " current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int"
    ).fetchone()
    assert row is not None
    return LockTable(*row)


def lock_findings(relations: Iterable[Relation], table: LockTable) -> list[Finding]:
    """Which tables have more partitions and indexes than one transaction can lock, with the number that is needed."""
    findings = []
    for relation in relations:
        needed = 1 + len(relation.indexes) + sum(1 + len(leaf.indexes) for leaf in relation.leaves)
        if relation.kind != PARTITIONED or needed <= table.size:
            continue
        per_session = table.locks_per_session - -needed // table.sessions
        is_read_alone = all(leaf.may_use_schema and leaf.may_select and not leaf.hides_rows for leaf in relation.leaves)
        found = (
            relation.subject,
            f"reading all of it takes {needed} locks: {len(relation.leaves)} partitions, with their indexes",
            f"PostgreSQL has room for {table.size} of all sessions. "
            + (
                "Copies lock one partition at a time, so later ones aren't made in chunks. `lockstep verify`, and"
                " queries over all of them, may fail"
                if is_read_alone
                else "Our role reads the partitions only through the table, so a copy needs all locks at once"
            ),
            f"alter system set max_locks_per_transaction = {per_session};  -- then restart the server",
        )
        findings.append(warning(*found) if is_read_alone else error(*found))
    return findings
