"""The section [searches]: whose searches are told of"""

from pathlib import Path

import pytest

from cdc.model.errors import ConfigurationError
from extensions.searches.settings import SearchesSettings
from lockstep.config import read
from lockstep.extension import installed
from tests.configurations import SHOP

_SINK = "[sinks.search]\ntype = 'opensearch'\n"


def test_a_process_tells_of_the_searches_of_sinks_that_the_section_names(tmp_path: Path) -> None:
    path = tmp_path / "lockstep.toml"
    (searches,) = (each for each in installed() if each.name == "searches")
    path.write_text(SHOP + _SINK)
    assert (read(path).section(SearchesSettings).sinks, searches.processes(read(path))) == ((), [])
    path.write_text(SHOP + _SINK + "[searches]\nsinks = ['search']\n")
    assert searches.processes(read(path)) == [("searches", "watch")]


def test_a_sink_that_can_have_no_searches_and_a_setting_that_there_is_not_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "lockstep.toml"
    path.write_text(SHOP + _SINK + "[searches]\nsinks = ['cache']\n")
    with pytest.raises(
        ConfigurationError, match=r"searches\.sinks: cache is no sink of tables in OpenSearch; those are: search"
    ):
        read(path)
    path.write_text(SHOP + _SINK + "[searches]\nsink = ['search']\n")
    with pytest.raises(ConfigurationError, match=r"searches\.sink: unknown setting"):
        read(path)
