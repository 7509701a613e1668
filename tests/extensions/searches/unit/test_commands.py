"""extensions.searches.commands: what is refused before any server is asked."""

import time

import pytest

from cdc.model.errors import ConfigurationError
from cdc.model.table import TableName
from extensions.searches.commands import parse_search, problem_of
from extensions.searches.stored import Search, SearchStatus


def test_a_search_is_parsed() -> None:
    query = '{"term": {"city.keyword": "Bern"}}'
    wanted = Search("bern", TableName("public", "profile"), {"term": {"city.keyword": "Bern"}})
    assert parse_search("bern", "public.profile", query) == wanted


def test_all_that_is_wrong_with_a_search_is_said_at_once() -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_search("Bern!", "profile", "{")
    said = str(refused.value)
    assert "its name is made of" in said
    assert "its query isn't JSON" in said
    assert "not a table name" in said


def test_a_search_has_a_problem_while_nobody_is_told_whatever_signs_of_life_there_are() -> None:
    now_ms = time.time_ns() // 1_000_000
    refused = {"red": "no such field"}
    assert problem_of(SearchStatus(now_ms, refused=refused), "bern") is None
    assert problem_of(SearchStatus(now_ms, refused=refused), "red") == "no such field"
    assert problem_of(SearchStatus(), "bern") == "it isn't reported: `lockstep searches watch` reports it"
    said = problem_of(SearchStatus(now_ms, refused=refused, waiting="no broker answers"), "red")
    assert said == "it isn't reported now: no broker answers"
