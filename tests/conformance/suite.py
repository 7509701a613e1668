"""All cases, and what is said of those that don't run."""

from dataclasses import replace

from tests.conformance.case import Case, Way
from tests.conformance.cases import changes, large_values, messages, publications, schema_changes, values

NOT_YET: frozenset[str] = frozenset()
"""Cases whose feature capture doesn't have yet. They don't run, and the table of results says so."""

LEFT_OUT = {
    "PG-007": "several publications: a pipeline has exactly one",
    "PG-008": "columns that the target has on top: a matter of sinks, see tests/contract",
    "PG-030": "origin=none: capture follows every change, wherever it came from",
    "PG-037": "FOR ALL TABLES EXCEPT: not in a released server",
    "MZ-ddl": "a list of incompatible changes: in the cases of section 5 one by one",
    "OWN-toastlog": "compaction, then a new sink: tests/live/test_topics.py and the jobs' tests",
}
"""Cases of the catalogue's sections that this suite doesn't have, and why."""

AT_EACH_CHANGE = frozenset(
    {
        *("GPC-ord", "DBZ-snap", "OWN-pk2", "PG-016", "OWN-2pc", "DBZ-tx", "DBZ-types", "PG-002"),
        *("OWN-trunc", "PG-013b", "RW-part", "PG-028", "PG-011", "PG-011b"),
        *("DBZ-dropadd", "DBZ-unseen", "DBZ-rewrite", "ETL-ddl", "OWN-away", "DBZ-rekey", "DBZ-remake", "DBZ-add"),
        *("DBZ-toast", "OWN-toastkey", "OWN-toastold"),
    }
)
"""Cases of most kinds, which `make test` runs on the newest version in two runs of capture."""

_RESTARTED = frozenset({"OWN-pk2", "OWN-trunc", "PG-028", "ETL-ddl", "DBZ-rewrite", "PDB-toast", "OWN-toastkey"})
"""Run a second time with capture restarted after each commit: it then knows only what it has written down."""


def cases(major: int) -> tuple[Case, ...]:
    """Every case in the form that it has on a major version, also those that the version doesn't know."""
    plain = _cases(major)
    return (*plain, *(_restarted(case) for case in plain if case.id in _RESTARTED))


def _restarted(case: Case) -> Case:
    return replace(
        case,
        id=f"{case.id}/r",
        about=f"with restarts: {case.about}",
        restarts=True,
        ways=(Way.HANDOFF,),
        transactions=(),
    )


def _cases(major: int) -> tuple[Case, ...]:
    return (
        *changes.CASES,
        *values.cases(major),
        *publications.CASES,
        *schema_changes.CASES,
        *large_values.CASES,
        *messages.CASES,
    )
