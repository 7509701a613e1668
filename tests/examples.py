"""The number of examples for tests that set it themselves."""

from hypothesis import settings

_IN_SOAK = 10


def examples(number: int) -> int:
    """This many in each run, ten times as many in ``make soak``."""
    return number * _IN_SOAK if settings.get_current_profile_name() == "soak" else number
