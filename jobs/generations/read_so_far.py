"""What a job has read of the log, sent with its heartbeat. What it has read and not applied waits in the job."""

from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ReadSoFar:
    """How far a job has read. ``records`` is the sum of the next offsets, to be compared with that of its progress.
    Everything committed before ``lsn`` of this ``epoch`` was read, the newest of it committed at ``commit_time_ms``, in
    milliseconds since 1970. ``lsn`` is 0 if unknown."""

    records: int
    epoch: int = 0
    lsn: int = 0
    commit_time_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, facts: Any) -> Self | None:
        return None if facts is None else cls(**facts)
