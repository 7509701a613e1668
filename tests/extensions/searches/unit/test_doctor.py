"""extensions.searches.doctor: what is said of searches; the topic is looked at in tests/live."""

from cdc.model.table import TableName
from extensions.searches.commands import ListedSearch
from extensions.searches.doctor import searches_findings
from extensions.searches.stored import Search


def listed_search(name: str, problem: str | None) -> ListedSearch:
    return ListedSearch("search", Search(name, TableName("public", "t"), {"match_all": {}}), None, problem)


def test_searches_that_nobody_is_told_of_for_one_reason_are_one_finding() -> None:
    searches = [listed_search(*each) for each in (("a", None), ("b", "silent"), ("c", "refused"), ("d", "silent"))]
    findings = searches_findings("search", searches)
    assert [(finding.severity.value, finding.subject, finding.what) for finding in findings] == [
        ("ok", "searches of search", "1 of 4 are reported"),
        ("warning", "searches of search", "c: refused"),
        ("warning", "searches of search", "b, d: silent"),
    ]
    assert searches_findings("search", []) == []
