"""``lockstep snapshot table``: ask capture to copy tables again."""

from collections.abc import Sequence

from cdc.model.errors import ConfigurationError
from cdc.model.table import TableName
from cdc.pipeline import Pipeline
from cdc.postgres.connection import connect
from cdc.postgres.repair_messages import request_repair


def request_copies(pipeline: Pipeline, texts: Sequence[str]) -> list[TableName]:
    """Send the requests; returns the tables.

    Raises ConfigurationError with every name that can't be copied, before any request is sent.
    """
    names, problems = [], []
    for text in texts:
        try:
            name = TableName.parse(text)
        except ValueError as error:
            problems.append(str(error))
            continue
        if name not in pipeline.source.keyed_names:
            problems.append(f"{name} isn't captured with a key")
        if name not in names:
            names.append(name)
    if problems:
        raise ConfigurationError(
            "these tables can't be copied",
            problems=problems,
            hint=f"captured with a key are: {', '.join(map(str, pipeline.source.keyed_names))}",
        )
    with connect(pipeline.source, application="lockstep snapshot") as connection:
        for name in names:
            request_repair(connection, name, None, slot=pipeline.slot)
    return names
