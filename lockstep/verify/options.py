"""What ``lockstep verify`` is asked to compare, and whether the options make sense. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from cdc.model.errors import ConfigurationError
from cdc.model.table import TableName
from lockstep.verify.source_load import Load
from sinks.registry import SinkSettings

SOURCE: Final = "source"
TOPIC: Final = "topic"


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What to compare, and how much it may cost.

    ``tables`` empty: all of the sink's. ``keys``: JSON texts of keys of the one chosen table; only these are compared.
    ``against``: ``source``, ``topic`` or a generation's number. ``generation`` None: the live one. ``settings`` are
    those that the generation was built with, ``other_settings`` those of the generation that it is compared with; None:
    those of the configuration.

    At most ``keys_max`` keys are held in memory. ``differences_max`` ends the search in a table that differs
    everywhere.
    """

    sink: str
    tables: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    repair: bool = False
    against: str = SOURCE
    generation: int | None = None
    settings: SinkSettings | None = None
    other_settings: SinkSettings | None = None
    load: Load = field(default_factory=Load)
    keys_max: int = 250_000
    differences_max: int = 10_000
    rounds_max: int = 12
    stall_s: float = 60.0
    repair_timeout_s: float = 60.0

    def check(self) -> list[TableName]:
        """The named tables. Raises ConfigurationError for options that make no sense for any sink."""
        if self.against not in (SOURCE, TOPIC):
            generation_number(self.against)
            if self.repair:
                raise ConfigurationError(
                    "--repair doesn't go with --against a generation: which of both is right?",
                    hint="compare each with the source, and repair where it differs",
                )
        for text in self.keys:
            try:
                orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise ConfigurationError(
                    f"--keys: {text!r} is not JSON: {error}", hint='for example {"id":42}'
                ) from None
        try:
            return [TableName.parse(text) for text in self.tables]
        except ValueError as error:
            raise ConfigurationError(f"--table: {error}") from None


def chosen_tables(options: VerifyOptions, settings: SinkSettings, captured: Sequence[TableName]) -> list[TableName]:
    """The tables to compare, of a sink with these settings. Raises ConfigurationError for options that mean nothing."""
    applied = list(settings.contained_tables) or list(captured)
    names = options.check()
    unknown = [name for name in names if name not in applied]
    if unknown:
        raise ConfigurationError(
            f"sink {options.sink!r} has no table {unknown[0]}", hint=f"its tables: {', '.join(map(str, applied))}"
        )
    chosen = names or applied
    if options.keys and len(chosen) != 1:
        raise ConfigurationError("--keys names keys of one table, and several are chosen", hint="name one with --table")
    return chosen


def generation_number(text: str) -> int:
    """The generation that ``--against`` names. Raises ConfigurationError for any other text."""
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(
            f"--against {text}: nothing that a sink can be compared with",
            hint="source, topic, or the number of a generation (`lockstep generations` lists them)",
        )
    return int(text)
