"""What an extension writes to beside the sinks, as seen by commands that take its name."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:  # every command loads this, and few need these
    from jobs.dead_letters.record import DeadLetter
    from jobs.extension_jobs import JobBeside
    from jobs.settings import SparkSettings
    from sinks.registry import SinkSettings


class RetriedRows(NamedTuple):
    taken: int
    gone: int
    """Closed in the meantime by somebody else."""
    refused: "Sequence[DeadLetter]"
    """Those that stay open, each with its reason."""


class AddedStore(Protocol):
    """A store that an extension writes to in a sink's server, under a name that no sink has."""

    @property
    def kind(self) -> str:
        """What it is, in words."""
        ...

    @property
    def section(self) -> str:
        """The section of the configuration that declares it."""
        ...

    @property
    def commands(self) -> str:
        """The commands that are meant for it: a hint for somebody who gave its name to another command."""
        ...

    @property
    def discarded(self) -> str:
        """What discarding its rejections means for it: a sentence without its end."""
        ...

    @property
    def settings(self) -> "SinkSettings":
        """Where it is."""
        ...

    def job(self, spark: "SparkSettings", *, once: bool) -> "JobBeside":
        """The job that writes to it. Called by ``apply``, for all stores or for the ones it names."""
        ...

    def retry(self, chosen: "Sequence[DeadLetter]", *, say: Callable[[str], None]) -> RetriedRows:
        """Try these of its rejections again, and close those that are taken. Called by ``rejections retry``. Raises
        LockstepError."""
        ...

    def closing(self, *, say: Callable[[str], None]) -> AbstractContextManager[object]:
        """Within this context nobody retries its rejections. ``rejections discard`` closes some there. Raises
        LockstepError."""
        ...
