"""Repeats preflight's checks of each captured table at each inspection, since tables change later."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg

from cdc.model.finding import Finding, Severity
from cdc.model.table import TableName
from cdc.postgres.preflight.catalogue_facts import Relation, family_digest, load_relations
from cdc.postgres.preflight.tables import table_findings
from cdc.postgres.settings import SourceSettings

_NONE: Final[Mapping[TableName, Sequence[Finding]]] = {}


class Preconditions:
    """What is wrong with the captured tables. It is read again only if a catalogue row has changed."""

    def __init__(self, source: SourceSettings) -> None:
        self._source = source
        self._digest = ""
        self._errors = _NONE

    def errors(self, sql: psycopg.Connection[Any], names: Sequence[TableName]) -> Mapping[TableName, Sequence[Finding]]:
        """The errors of each of these tables that has some. Raises as psycopg."""
        digest = family_digest(sql, names)
        if digest != self._digest:
            relations = load_relations(sql, names)
            self._errors = {name: found for name in relations if (found := self._judged(name, relations))}
            self._digest = digest
        return self._errors

    def _judged(self, name: TableName, relations: Mapping[TableName, Relation]) -> list[Finding]:
        keys, append_only = self._source.keys, self._source.append_only
        findings = table_findings([name], relations, keys=keys, append_only=append_only, similar={})
        return [finding for finding in findings if finding.severity is Severity.ERROR]
