"""What a writer is told that another one has replaced, the same by every destination that can fence."""

from cdc.model.errors import Fenced


def replaced_writer(name: str, generation: int) -> Fenced:
    """The error of a job that writes to a generation of which another one has become the writer."""
    return Fenced(
        f"another job has become the writer of sink {name!r}, generation {generation}",
        hint="stop one of the two jobs",
    )
