"""Errors about a generation, the same for every destination."""

from cdc.model.errors import Fenced, LockstepError


def replaced_writer(name: str, generation: int) -> Fenced:
    return Fenced(
        f"another job has become the writer of sink {name!r}, generation {generation}",
        hint="stop one of the two jobs",
    )


def missing_generation(generation: int, sink: str = "") -> LockstepError:
    of_sink = f" of sink {sink!r}" if sink else ""
    return LockstepError(
        f"generation {generation}{of_sink} doesn't exist",
        hint=f"it was dropped, or `lockstep apply` hasn't made it: `lockstep generations {sink or 'SINK'}` lists them",
    )


def live_generation(generation: int) -> LockstepError:
    """The error when somebody drops the live generation."""
    return LockstepError(
        f"generation {generation} is live", hint="switch to another generation before you drop this one"
    )


def loading_generation(generation: int) -> LockstepError:
    """The error when somebody makes a generation live too soon."""
    return LockstepError(
        f"generation {generation} is still being loaded in bulk", hint="switch when its load has ended"
    )
