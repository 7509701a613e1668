"""What a job has read of the log, as it tells with its sign of life: what it has read and not applied lies with it."""

from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ReadSoFar:
    """How far a job has read. ``records`` is the sum of the next offsets: that of its progress is compared with it.

    All that was committed before ``lsn`` of this ``epoch`` has been read, the newest of it at ``commit_time_ms``, in
    milliseconds since 1970. ``lsn`` is 0 where nobody knows.
    """

    records: int
    epoch: int = 0
    lsn: int = 0
    commit_time_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, facts: Any) -> Self | None:
        """None where none was told."""
        return None if facts is None else cls(**facts)
