"""What to do about a finding, in the same words everywhere. Pure."""


def rebuild_step(label: str) -> str:
    """For a generation that was built with other settings. ``label`` is a ``SinkFacts.label``. The command builds
    beside what readers see, and says at its end how to switch them."""
    return f"`lockstep rebuild {label.partition(' ')[0]}`"


def differing_step(label: str, *, is_view: bool) -> str:
    """For a live generation that differs from the source. Single rows of a view can't be repaired."""
    if is_view:
        return f"`lockstep rebuild {label} --switch` builds it again"
    return f"`lockstep verify {label} --repair` mends them"
