"""What a view's task notes beside the rows of its sink: coordination records of each generation, and of each shard.

``g<n>.view_run`` says which run's state writes the result, or that one does so which is still being built.
``g<n>.view_tag`` has the newest tag of a further output at one LSN. Those of a shard end with its number.
"""

from typing import Final

from sinks.contract import CoordinationRecords

RUN: Final = "view_run"
TAG: Final = "view_tag"

BUILDING: Final = "building"
"""In the place of a run: rows are there of a state that isn't whole, and no other one may go on."""


def note_name(what: str, generation: int, shard: int | None = None) -> str:
    """The name of the record."""
    return f"g{generation}.{what}" + ("" if shard is None else f".{shard}")


def has_had_state(records: CoordinationRecords, generation: int, *, tasks: int) -> bool:
    """Whether any state of the view, which so many tasks keep, has ever been whole. Before that it is noted.

    Raises what the destination raises.
    """
    numbers = [None] if tasks == 1 else list(range(tasks))
    return any(records.load(note_name(RUN, generation, number)) not in (None, BUILDING) for number in numbers)
