"""Times as messages have them. Pure: nobody is asked what time it is."""

from datetime import UTC, datetime


def time_text(ms: int | None) -> str:
    """A time in milliseconds since 1970, to the second; None is one that nobody knows."""
    return "an unknown time" if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
