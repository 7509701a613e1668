"""lockstep.searches.commands: what is refused before any server is asked."""

import pytest

from cdc.model.errors import ConfigurationError
from cdc.model.table import TableName
from lockstep.searches.commands import parse_search
from sinks.opensearch.searches import Search


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
