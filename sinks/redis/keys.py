"""The keys of a Redis sink, except those of rows and sets (``layout``)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RedisKeys:
    """The keys of one generation of the sink whose keys begin with ``prefix``."""

    prefix: str
    generation: int

    @property
    def rows(self) -> str:
        """The prefix of the keys of all rows and sets."""
        return f"{self.prefix}:g{self.generation}:"

    @property
    def memos(self) -> str:
        """The prefix of the keys that remember the tags of rows that may have expired."""
        return f"{self.prefix}:g{self.generation}.tags:"

    @property
    def tables(self) -> str:
        return f"{self.prefix}:g{self.generation}.tables"

    @property
    def progress(self) -> str:
        return f"{self.prefix}:g{self.generation}.progress"

    @property
    def epoch(self) -> str:
        return f"{self.prefix}:g{self.generation}.epoch"

    @property
    def fence(self) -> str:
        """Of a view: the fence of the generation's writer. Every script that writes rows compares it."""
        return f"{self.prefix}:g{self.generation}.fence"

    @property
    def layout(self) -> str:
        """The settings of the generation's layout, for applications that put rows there beside the job."""
        return f"{self.prefix}:g{self.generation}.layout"

    @property
    def live(self) -> str:
        return f"{self.prefix}:live"

    @property
    def generations(self) -> str:
        return f"{self.prefix}:generations"

    @property
    def records(self) -> str:
        return f"{self.prefix}:coordination"

    @property
    def format(self) -> str:
        return f"{self.prefix}:format"
