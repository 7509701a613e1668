"""``lockstep rejections``: events that a sink refused for good, with its reasons. Shows no row values, except keys."""

from typing import Any

import orjson
from rich.table import Table

from cdc.kafka.cluster import Cluster
from cdc.kafka.control_topics import read_compacted
from cdc.kafka.topics import REJECTED, control_topic
from lockstep.config import Config


def open_rejections(config: Config) -> list[dict[str, Any]]:
    """What the dead-letter topic holds now, oldest first; one entry per sink, generation and key. Raises Unavailable."""
    client = config.kafka.client()
    topic = control_topic(config.pipeline.name, REJECTED)
    if topic not in Cluster(client).partition_counts():
        return []
    letters = [orjson.loads(value) for value in read_compacted(client, topic).values()]
    return [{name: fact for name, fact in letter.items() if name != "value"} for letter in letters]


def rejections_table(letters: list[dict[str, Any]]) -> Table:
    """For people."""
    table = Table()
    for heading in ("sink", "generation", "topic", "partition", "offset", "key", "tag", "reason"):
        table.add_column(heading, overflow="fold")
    for letter in letters:
        facts = (letter["sink"], letter["generation"], letter["topic"], letter["partition"], letter["offset"])
        table.add_row(*map(str, facts), orjson.dumps(letter["key"]).decode(), letter["tag"], letter["reason"])
    return table
