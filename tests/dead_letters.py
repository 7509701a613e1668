"""Dead letters for tests."""

from cdc.model.event import Position
from jobs.dead_letters.record import DeadLetter


def rejected(
    key: bytes = b'{"id":42}',
    *,
    reason: str = "no room for 3 bytes",
    generation: int = 1,
    partition: int = 2,
    offset: int = 17,
) -> DeadLetter:
    position = Position("shop.public.orders", partition, offset)
    return DeadLetter("search", generation, position, key, "0" * 28, reason, 5_000, b"", 0)
