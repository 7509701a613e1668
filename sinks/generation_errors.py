"""Errors about a generation, the same by every destination."""

from cdc.model.errors import Fenced, LockstepError


def replaced_writer(name: str, generation: int) -> Fenced:
    """The error of a job that writes to a generation of which another one has become the writer."""
    return Fenced(
        f"another job has become the writer of sink {name!r}, generation {generation}",
        hint="stop one of the two jobs",
    )


def missing_generation(generation: int, sink: str = "") -> LockstepError:
    """The error where a generation isn't there."""
    of_sink = f" of sink {sink!r}" if sink else ""
    return LockstepError(
        f"generation {generation}{of_sink} doesn't exist", hint="it was never prepared, or it was dropped"
    )


def live_generation(generation: int) -> LockstepError:
    """The error where the live one is to be dropped."""
    return LockstepError(
        f"generation {generation} is live", hint="switch to another generation before you drop this one"
    )


def loading_generation(generation: int) -> LockstepError:
    """The error where one is to be made live too soon."""
    return LockstepError(
        f"generation {generation} is still being loaded in bulk", hint="switch when its load has ended"
    )
