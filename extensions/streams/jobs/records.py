"""The names of a stream query's coordination records, stored beside its result."""

from typing import Final

POSTING_PAUSE: Final = "stream_posting_pause"
"""Asks the query's jobs of all builds to post nothing: ``extensions.streams.jobs.posting_turn``."""

POSTER: Final = "stream_poster"
"""The job that posts the query's rows, of all builds: the one that began last."""


def begun_name(generation: int) -> str:
    """What a build of the result was begun with: ``Begun``."""
    return f"g{generation}.stream_begun"


def waiting_name(generation: int) -> str:
    """What its job waits for, in a sentence; only while it waits."""
    return f"g{generation}.stream_waiting"


def figures_name(generation: int) -> str:
    """What the job has done for it: ``Figures``."""
    return f"g{generation}.stream_done"


def posted_name(generation: int) -> str:
    """How far its rows are posted: ``Posted``."""
    return f"g{generation}.stream_posted"


def result_name(generation: int) -> str:
    """The result's columns and key: its ``Shape``."""
    return f"g{generation}.stream_result"


def erased_name(generation: int) -> str:
    """The offset up to which its topic may have tombstones. A row before a tombstone of its key isn't posted."""
    return f"g{generation}.stream_erased"
