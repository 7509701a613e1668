"""Findings as people see them."""

from cdc.postgres.preflight.finding import warning
from lockstep.doctor.display import findings_text
from lockstep.terminal import out


def test_no_name_of_others_passes_for_a_finding_or_for_sql() -> None:
    finding = warning("table a\nerror   forged", "column b\x1b[2J\nhas", "why\nnot", "first;\nsecond;\x9b")
    with out.capture() as captured:
        out.print(findings_text([finding]), soft_wrap=True)
    assert [line.rstrip() for line in captured.get().splitlines()] == [
        r"warning table a error   forged: column b\u001b[2J has",
        "         why: why not",
        "         run: first;",
        r"              second;\u009b",
    ]
