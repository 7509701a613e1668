"""A log message whose facts are fields, so that a JSON log stores them as fields."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Fact = str | int | float | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogMessage:
    """What happened, its facts, and a sentence for people if the facts need one. It is passed to a logger in place of a
    text. As a text it is ``event name=value name=value: explanation``."""

    event: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
    explanation: str = ""

    def __str__(self) -> str:
        facts = (f"{name}={','.join(fact) if isinstance(fact, tuple) else fact}" for name, fact in self.facts.items())
        return " ".join((self.event, *facts)) + (f": {self.explanation}" if self.explanation else "")
