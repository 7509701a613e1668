"""How many examples Hypothesis tries where a test says it itself."""

from hypothesis import settings

_IN_SOAK = 10


def examples(number: int) -> int:
    """That many at each run, ten times as many in ``make soak``."""
    return number * _IN_SOAK if settings.get_current_profile_name() == "soak" else number
