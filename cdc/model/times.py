"""Times as messages show them. Pure: reads no clock."""

from datetime import UTC, datetime


def time_text(ms: int | None) -> str:
    """Milliseconds since 1970 as text, to the second; None is an unknown time."""
    return "an unknown time" if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
