"""What is to be done about what a look finds, in the same words wherever it is said. Pure."""


def rebuild_step(label: str) -> str:
    """For a generation that was built with other settings. ``label`` is a ``SinkFacts.label``.

    The command builds beside what readers see, and says at its end how they are switched.
    """
    return f"`lockstep rebuild {label.partition(' ')[0]}`"


def differing_step(label: str, *, is_view: bool) -> str:
    """For a generation that readers see and that differs from the source. No row of a view is repaired by itself."""
    if is_view:
        return f"`lockstep rebuild {label} --switch` builds it again"
    return f"`lockstep verify {label} --repair` mends them"
