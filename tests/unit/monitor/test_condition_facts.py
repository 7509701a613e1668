"""Whose certificates are looked at, which disks, and what becomes of those that can't be."""

from functools import partial
from pathlib import Path

import pytest
import trustme

from lockstep.config import Config, load
from monitor.certificates import Validity, file_validity
from monitor.condition_facts import FactsLook, after, certificates_of, disks_of, expiries, has_capture_standby

_TOML = """
[pipeline]
name = "shop"
[source]
dsn = "host=db1,db2 port=5433 dbname=d sslrootcert=system sslcert=client.pem"
tables = ["public.t"]
[kafka]
bootstrap_servers = "k1:9093,[::1]:9094"
tls = { ca_file = "kafka.pem" }
[sinks.search]
type = "opensearch"
urls = ["https://s1"]
tls = { ca_file = "search.pem" }
[sinks.plain]
type = "opensearch"
prefix = "plain"
urls = ["http://s2:9200"]
[sinks.cache]
type = "redis"
url = "rediss://c:6380/0"
[sinks.warehouse]
type = "warehouse"
url = "postgresql+psycopg://me@w1/d?sslrootcert=/w.pem"
tls = { certificate_file = "ours.pem", key_file = "ours.key" }
[sinks.twins]
type = "warehouse"
url = "postgresql://me@/d?host=w2:5433&host=w3"
[sinks.clear]
type = "warehouse"
url = "postgresql://me@w4/d?sslmode=disable"
[sinks.file]
type = "warehouse"
url = "duckdb:////srv/w.duckdb"
"""


def _load(directory: Path, text: str = _TOML) -> Config:
    path = directory / "lockstep.toml"
    path.write_text(text)
    return load(path)


def test_every_certificate_of_the_settings_is_looked_at_where_it_is(tmp_path: Path) -> None:
    config = _load(tmp_path)
    certificates = certificates_of(config.as_pipeline(), config.sinks)
    files = {str(tmp_path / name) for name in ("client.pem", "kafka.pem", "search.pem", "ours.pem")}
    servers = {
        "source db1:5433",
        "source db2:5433",
        "kafka k1:9093",
        "kafka [::1]:9094",
        "search s1:443",
        "cache c:6380",
        "warehouse w1:5432",
        "twins w2:5433",
        "twins w3:5432",
    }
    assert certificates.keys() == files | servers


def test_one_that_can_not_be_read_keeps_no_other(tmp_path: Path) -> None:
    config = _load(tmp_path)
    trustme.CA().issue_cert("c").cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
    (tmp_path / "kafka.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    of_files = {
        whose: ask
        for whose, ask in certificates_of(config.as_pipeline(), config.sinks).items()
        if whose.endswith("pem")
    }
    found = expiries(of_files)
    assert [whose for whose, validity in found.items() if validity] == [str(tmp_path / "client.pem")]
    assert found[str(tmp_path / "kafka.pem")] is None


def test_a_source_without_tls_or_over_a_socket_has_none_to_look_at(tmp_path: Path) -> None:
    for dsn in ("host=h sslmode=disable", "host=/run/postgresql", "dbname=d"):
        config = _load(
            tmp_path,
            f"[pipeline]\nname='p'\n[source]\ndsn='{dsn}'\ntables=['public.t']\n[kafka]\nbootstrap_servers='k:9092'\n",
        )
        assert certificates_of(config.as_pipeline(), config.sinks) == {}


def test_a_disk_is_measured_once_also_for_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    disks = disks_of([tmp_path / "not" / "yet", tmp_path])
    ((directory, (free, size)),) = disks.items()
    assert directory == str(tmp_path / "not" / "yet")
    assert 0 < free <= size


def test_a_certificate_that_can_not_be_read_now_stays_known_and_one_without_tls_has_none() -> None:
    one, other = Validity(1, 0), Validity(2, 0)
    assert after({}, {"a": one, "b": None}) == {"a": one, "b": None}
    assert after({"a": one, "b": None}, {"a": None, "b": other}) == {"a": one, "b": other}
    assert after({"a": one, "b": None}, {}) == {"a": one}, "it was asked, and has none"


def test_a_certificate_that_was_not_read_is_asked_for_again_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _load(tmp_path)
    files = {str(tmp_path / name) for name in ("client.pem", "kafka.pem", "search.pem")}
    monkeypatch.setattr(
        "monitor.condition_facts.certificates_of",
        lambda *_: {whose: partial(file_validity, Path(whose)) for whose in files},
    )
    facts = FactsLook(config.as_pipeline(), config.sinks, [tmp_path], with_standby=False)
    assert facts.look().certificates == dict.fromkeys(files)
    trustme.CA().issue_cert("c").cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
    assert (facts.look().certificates or {}).get(str(tmp_path / "client.pem"))


def test_whatever_one_ask_raises_it_is_unknown_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError

    assert expiries({"a": broken, "b": lambda: 1}) == {"a": None, "b": 1}
    config = _load(tmp_path)
    answers = iter([broken, lambda *_: {"a": lambda: 1}])
    monkeypatch.setattr("monitor.condition_facts.certificates_of", lambda *_: next(answers, lambda *_: {})())
    monkeypatch.setattr("monitor.condition_facts.has_capture_standby", broken)
    facts = FactsLook(config.as_pipeline(), config.sinks, [tmp_path], with_standby=True)
    assert facts.look().certificates is None
    found = facts.look()
    assert (found.certificates, found.has_standby) == ({"a": 1}, None)
    assert str(tmp_path) in (found.disks or {})


def test_a_directory_that_can_not_be_looked_into_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_dir", refused)
    assert disks_of([tmp_path]) == {str(tmp_path): None}


def test_a_source_that_does_not_answer_says_nothing_of_a_standby(tmp_path: Path) -> None:
    config = _load(tmp_path, _TOML.replace("host=db1,db2 port=5433", "host=127.0.0.1 port=1"))
    assert has_capture_standby(config.as_pipeline()) is None
