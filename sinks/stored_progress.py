"""A destination that was put back to an earlier moment, or failed over, lacks progress that was stored there (pure)."""

from cdc.model.errors import DataLost
from sinks.contract import Progress


def require_kept(known: Progress | None, stored: Progress | None, destination: str) -> None:
    """Raise DataLost when ``stored`` is behind what is ``known`` to have been stored before.

    Rows that were written after that may be gone with it. Progress that another job has raised since is fine.
    """
    if known is None:
        return
    kept = {} if stored is None else stored.next_offsets
    lost = [at for at, offset in known.next_offsets.items() if kept.get(at, 0) < offset]
    if lost or stored is None:
        raise DataLost(
            f"{destination} lacks progress that this job has stored there: it was removed or put back to an earlier"
            " moment, or has failed over to a server that lacked its last writes"
        )
