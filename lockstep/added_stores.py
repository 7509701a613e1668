"""What an extension writes to beside the sinks, as commands see it that take its name."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:  # every command loads this, and few need these
    from jobs.dead_letters.record import DeadLetter
    from jobs.extension_jobs import JobBeside
    from jobs.settings import SparkSettings
    from sinks.registry import SinkSettings


class RetriedRows(NamedTuple):
    """What became of rejections that were retried."""

    taken: int
    gone: int
    """Closed meanwhile, by somebody else."""
    refused: "Sequence[DeadLetter]"
    """Those that stay open, each with its reason."""


class AddedStore(Protocol):
    """Something that an extension writes to the store of a sink, under a name that no sink has."""

    @property
    def kind(self) -> str:
        """What it is, in words."""
        ...

    @property
    def section(self) -> str:
        """The section of the configuration that has it, by its name."""
        ...

    @property
    def commands(self) -> str:
        """Which commands are meant for it, for whoever has given its name to another one."""
        ...

    @property
    def discarded(self) -> str:
        """What it means for it that its rejections are discarded, in a sentence without its end."""
        ...

    @property
    def settings(self) -> "SinkSettings":
        """Where it is."""
        ...

    def job(self, spark: "SparkSettings", *, once: bool) -> "JobBeside":
        """What writes to it. Called by ``apply``, with all or where its name is given."""
        ...

    def retry(self, chosen: "Sequence[DeadLetter]", *, say: Callable[[str], None]) -> RetriedRows:
        """Try these of its rejections again, and close those that are taken. Called by ``rejections retry``.

        Raises LockstepError.
        """
        ...

    def closing(self, *, say: Callable[[str], None]) -> AbstractContextManager[object]:
        """Within it nobody tries a rejection of it again. ``rejections discard`` closes some there.

        Raises LockstepError.
        """
        ...
