"""lockstep.dashboard.server"""

import socket
from contextlib import closing
from pathlib import Path

import pytest

from cdc.model.errors import ConfigurationError
from lockstep.config import load, read
from lockstep.dashboard.server import ConfigurationFile, serve

TEXT = (
    "[pipeline]\nname = 'shop'\n[source]\ndsn = 'host=h dbname=d'\ntables = ['public.t']\n"
    "[kafka]\nbootstrap_servers = 'k:9092'\n"
)


def test_a_file_has_changed_when_a_server_could_start_with_another_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCKSTEP_DASHBOARD_TOKEN", raising=False)
    path = tmp_path / "lockstep.toml"
    path.write_text(TEXT)
    file = ConfigurationFile(path, load(path))
    assert not file.has_changed()
    for text in (
        f"# a comment\n{TEXT}",
        f"{TEXT}\nno such setting",
        f"{TEXT}\n[dashboard]\nlisten = '0.0.0.0:8642'",
    ):
        path.write_text(text)
        assert not file.has_changed(), text
    path.unlink()
    assert not file.has_changed()
    path.write_text(f"{TEXT}\n[sinks.cache]\ntype = 'redis'\nprefix = 'a'")
    assert file.has_changed()
    assert file.has_changed(), "until somebody has done something about it"
    path.write_text(TEXT)
    assert not file.has_changed()


def test_a_file_with_patterns_is_compared_without_asking_any_server(tmp_path: Path) -> None:
    """A change that came while Kafka was away would be lost, and everybody who is served would wait meanwhile."""
    path = tmp_path / "lockstep.toml"
    text = TEXT.replace("public.t", "public.*").replace("k:9092", "127.0.0.1:1")
    path.write_text(text)
    file = ConfigurationFile(path, read(path))
    assert not file.has_changed()
    path.write_text(text.replace("public.*", "public.t*"))
    assert file.has_changed()


def test_an_address_that_another_server_has_is_refused_before_anything_is_said(tmp_path: Path) -> None:
    path = tmp_path / "lockstep.toml"
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        path.write_text(f"{TEXT}\n[dashboard]\nlisten = '127.0.0.1:{other.getsockname()[1]}'")
        with pytest.raises(ConfigurationError, match="can't listen"):
            serve(load(path), path, say=pytest.fail)
