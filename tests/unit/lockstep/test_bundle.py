"""What of a configuration comes into an archive, and that no secret does, wherever one is quoted."""

import json
import tarfile
from pathlib import Path
from urllib.parse import quote

import pytest

from cdc.model.errors import ConfigurationError, LockstepError
from lockstep import bundle
from lockstep.bundle import write_bundle
from lockstep.config import Config, load
from lockstep.extension import installed

SECRETS = {name: f"recognisable-{name}-7f3a" for name in ("source", "kafka", "search", "file", "salt")}
HAS_ALERTS = any(each.name == "alerts" for each in installed())
if HAS_ALERTS:
    SECRETS["hook"] = "https://hooks.example/recognisable-hook-7f3a"  # whoever has the address may post there
    SECRETS["longer"] = SECRETS["search"] + "-and-more"


_ALERTS = """[alerts]
url_file = "hook"
headers = { Authorization = "HOOK_TOKEN" }
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("LOCKSTEP_SOURCE_PASSWORD", SECRETS["source"])
    monkeypatch.setenv("LOCKSTEP_KAFKA_PASSWORD", SECRETS["kafka"])
    monkeypatch.setenv("LOCKSTEP_SINK_SEARCH_PASSWORD", SECRETS["search"])
    monkeypatch.setenv("LOCKSTEP_SINK_CACHE_SALT", SECRETS["salt"])
    monkeypatch.setenv("HOOK_TOKEN", SECRETS.get("longer", ""))
    (tmp_path / "password").write_text(SECRETS["file"] + "\n")
    (tmp_path / "hook").write_text(SECRETS.get("hook", "") + "\n")
    (tmp_path / "lockstep.toml").write_text(
        """
[pipeline]
name = "shop"
[source]
dsn = "host=db.example dbname=shop user=lockstep"
tables = ["public.orders"]
[kafka]
bootstrap_servers = "kafka.example:9092"
sasl_mechanism = "PLAIN"
username = "lockstep"
[sinks.search]
type = "opensearch"
urls = ["https://search.example:9200"]
login = { user = "reader" }
[sinks.cache]
type = "redis"
url = "rediss://cache.example:6379/0"
login = { password_file = "password" }
mask = { "public.orders.owner" = "hash" }
[sinks.warehouse]
type = "warehouse"
url = "postgresql+psycopg://dwh.example/warehouse"
"""
        + (_ALERTS if HAS_ALERTS else "")
    )
    return load(tmp_path / "lockstep.toml")


def _parts(file: Path) -> dict[str, str]:
    texts = {}
    with tarfile.open(file) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            texts[member.name.removeprefix("lockstep-bundle/")] = content.read().decode()
    return texts


@pytest.fixture
def file(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive of servers that quote every secret in what they answer."""

    def refuse(*_: object) -> None:
        quoted = map(quote, SECRETS.values())
        raise LockstepError(f"refused: {' '.join([*SECRETS.values(), *quoted])}")

    for name in ("read_pipeline_state", "_lag", "examine", "_topics", "views_now"):
        monkeypatch.setattr(bundle, name, refuse)
    written = tmp_path / "bundle.tar.gz"
    write_bundle(config, written, say=lambda _: None)
    return written


def test_no_secret_comes_into_the_archive(file: Path) -> None:
    texts = _parts(file)
    for words in ("recognisable", "7f3a", "and-more"):
        assert words not in "".join(texts.values())
    assert json.loads(texts["lag.json"])["error"].startswith("refused: *** ***")


def test_settings_that_hold_no_secret_are_shown(file: Path) -> None:
    shown = json.loads(_parts(file)["configuration.json"])
    assert shown["source"]["dsn"] == "host=db.example dbname=shop user=lockstep"
    assert shown["kafka"]["bootstrap_servers"] == "kafka.example:9092"
    assert shown["sinks"]["cache"]["url"] == "rediss://cache.example:6379/0"
    login = shown["sinks"]["search"]["login"]
    assert (login["user"], login["password"], login["password_file"]) == ("reader", "***", None)


def test_the_archive_is_its_owners_and_replaces_none(file: Path, config: Config) -> None:
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.read_bytes()
    with pytest.raises(ConfigurationError, match="exists already"):
        write_bundle(config, file, say=lambda _: None)
    assert file.read_bytes() == before


@pytest.mark.usefixtures("file")  # which keeps it from asking servers
def test_nothing_is_left_of_one_that_is_interrupted(config: Config, tmp_path: Path) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    interrupted = tmp_path / "interrupted.tar.gz"
    with pytest.raises(KeyboardInterrupt):
        write_bundle(config, interrupted, say=interrupt)
    assert not interrupted.exists()


def test_versions_name_the_packages(file: Path) -> None:
    versions = json.loads(_parts(file)["versions.json"])
    assert versions["lockstep"]
    assert versions["packages"]["confluent-kafka"]
