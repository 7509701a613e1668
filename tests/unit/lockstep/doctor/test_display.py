"""Findings as people see them."""

from cdc.model.finding import Finding, Severity, error, ok, warning
from lockstep.doctor.display import findings_json, findings_text
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
        "no errors, 1 warning",
    ]


def _shown(*findings: Finding) -> list[str]:
    with out.capture() as captured:
        out.print(findings_text(findings), soft_wrap=True)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_what_several_tables_have_in_common_is_told_once_with_each_statement_once() -> None:
    shown = _shown(
        error("table a", "lacks a key", "why", "grant usage;\nalter a;"),
        error("table b", "lacks a key", "why", "grant usage;\nalter b;"),
        error("table c", "lacks something else", "why", "alter c;"),
    )
    assert shown == [
        "error   2 tables (a, b): lacks a key",
        "         why: why",
        "         run: grant usage;",
        "              alter a;",
        "              alter b;",
        "error   table c: lacks something else",
        "         why: why",
        "         run: alter c;",
        "3 errors, no warnings",
    ]


def test_other_subjects_are_told_one_by_one() -> None:
    assert _shown(ok("Kafka", "answers"), ok("source", "answers"))[:2] == [
        "ok      Kafka: answers",
        "ok      source: answers",
    ]


def test_the_worst_come_last_and_nothing_is_to_run_of_what_is_fine() -> None:
    shown = _shown(
        error("a", "fails", "why", "mend;"),
        Finding(Severity.OK, "b", "is fine", "why", "optional;"),
        warning("c", "may fail", "why", "look;"),
    )
    assert [line for line in shown if "why" not in line] == [
        "ok      b: is fine",
        "warning c: may fail",
        "         run: look;",
        "error   a: fails",
        "         run: mend;",
        "1 error, 1 warning",
    ]


def test_every_finding_of_its_own_is_in_the_json() -> None:
    findings = [ok("table a", "key id"), ok("table b", "key id")]
    assert [each["subject"] for each in findings_json(findings)] == ["table a", "table b"]
