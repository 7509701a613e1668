"""What a silence may name: the subjects that the conditions have."""

from pathlib import Path

import pytest

from lockstep.alert_subjects import is_subject, subjects_of
from lockstep.config import Config, load
from monitor.alerts.conditions import NAMES


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "lockstep.toml"
    path.write_text(
        "[pipeline]\nname = 'shop'\n[source]\ndsn = 'host=db dbname=d sslrootcert=ca.pem'\ntables = ['public.t']\n"
        "[kafka]\nbootstrap_servers = 'k:9092'\n[sinks.cache]\ntype = 'redis'\n"
        "[sinks.w]\ntype = 'warehouse'\nurl = 'postgresql://w/d'\n"
        "[streams.taps]\ntopic = 'taps'\ncolumns = { at = 'timestamptz' }\ntime = 'at'\nlate = '1 minute'\n"
        "[stream_queries.recent]\nsink = 'w'\nkey = ['at']\nsql = 'select at from taps'\nschema = 'recent'\n"
        "[alerts.rules.quiet]\nof = 'recent'\nwhere = 'at is null'\n"
    )
    return load(path)


def test_each_condition_has_subjects(config: Config) -> None:
    assert subjects_of(config).keys() == set(NAMES)
    assert all(subjects_of(config).values())


@pytest.mark.parametrize(
    ("condition", "subject"),
    [
        ("lag", "cache"),
        ("job-stopped", "cache g2"),
        ("stalled", "applied: cache g12"),
        ("stalled", "in Kafka"),
        ("stream-query-stopped", "recent g2"),
        ("stream-query-unreachable", "recent"),
        ("stream-query-undelivered", "recent g2"),
        ("rule", "quiet"),
        ("certificate-expires", "recent w:5432"),
        ("unreachable", "source-or-kafka"),
        ("certificate-expires", "source db:5432"),
        ("slot-lost", "capture"),
    ],
)
def test_what_a_condition_can_be_about_is_known(condition: str, subject: str, config: Config) -> None:
    assert is_subject(condition, subject, config)


@pytest.mark.parametrize(
    ("condition", "subject"),
    [
        ("lag", "cahce"),
        ("lag", "cache g2"),
        ("job-stopped", "cache g"),
        ("job-stopped", "recent"),
        ("slot-lost", "cache"),
        ("lag", ""),
    ],
)
def test_what_no_condition_can_be_about_is_not(condition: str, subject: str, config: Config) -> None:
    assert not is_subject(condition, subject, config)
