"""Configurations whose servers don't exist, for tests that ask none."""

import json
from collections.abc import Sequence
from pathlib import Path

from cdc.kafka.settings import KafkaSettings
from cdc.settings import Tls
from lockstep.config import Config, read

CACHE = '[sinks.cache]\ntype = "redis"\nurl = "redis://127.0.0.1:1/0"\n'


def toml(*sections: str, tables: Sequence[str] = ("public.orders",), source: str = "", kafka: str = "") -> str:
    """Pipeline ``shop``; ``source`` and ``kafka`` are more lines of those sections."""
    return (
        '[pipeline]\nname = "shop"\n'
        f'[source]\ndsn = "host=127.0.0.1 port=1 dbname=app"\ntables = {json.dumps(list(tables))}\n{source}\n'
        f'[kafka]\nbootstrap_servers = "127.0.0.1:1"\n{kafka}\n{"".join(sections)}'
    )


SHOP = toml()


def query(section: str, sql: str, *, sink: str = "cache", key: Sequence[str] = ("id",)) -> str:
    """A view or a stream query, as ``section`` says; more lines of it may follow."""
    return f'[{section}]\nsink = "{sink}"\nkey = {json.dumps(list(key))}\nsql = "{sql}"\n'


def configured(directory: Path, *sections: str, **more: Sequence[str] | str) -> Config:
    """The same as ``lockstep.toml`` in a directory, as a process reads it."""
    path = directory / "lockstep.toml"
    path.write_text(toml(*sections, **more))  # type: ignore[arg-type]
    return read(path)


def oauthbearer(**librdkafka: str | int) -> KafkaSettings:
    """Settings for brokers whose clients present tokens; ``librdkafka`` are settings of the client."""
    return KafkaSettings(
        bootstrap_servers="kafka:9092",
        tls=Tls(),
        sasl_mechanism="OAUTHBEARER",
        username="lockstep",
        librdkafka=librdkafka,
    )
