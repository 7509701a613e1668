"""What is configured of a SQL warehouse."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, SecretStr, model_validator

from cdc.model.table import TableName
from sinks.access import Login, Tls
from sinks.table_settings import PROJECTING, TableSettings
from sinks.warehouse.names import NAME_BYTES_MAX, WarehouseNames


def _parse_tables(texts: Iterable[str]) -> dict[str, TableName]:
    """``schema.table`` texts -> names. Raises ValueError that names every text which is none."""
    names = {}
    problems = []
    for text in texts:
        try:
            names[text] = TableName.parse(text)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("; ".join(problems))
    return names


def _are_names(names: dict[str, str]) -> dict[str, str]:
    problems = [f"{table} has an empty name" for table, called in names.items() if not called]
    problems += [
        f"{table}: the name {called!r} is longer than {NAME_BYTES_MAX} bytes, PostgreSQL would cut it"
        for table, called in names.items()
        if len(called.encode()) > NAME_BYTES_MAX
    ]
    problems += [f"{table}: a name can't hold the character NUL" for table, called in names.items() if "\0" in called]
    if problems:
        raise ValueError("; ".join(problems))
    _parse_tables(names)
    return names


def _are_tables(tables: bool | tuple[str, ...]) -> bool | tuple[str, ...]:
    if not isinstance(tables, bool):
        _parse_tables(tables)
    return tables


class WarehouseSettings(TableSettings):
    """A PostgreSQL warehouse by SQLAlchemy address, ``postgresql+psycopg://user@host/database``.

    ``schema_name`` is where the views are, ``schema`` in the file; without it the sink's name. ``login`` and ``tls`` win
    over what the address says. ``schema_changes`` may be ``follow``, too: a column that the source renames or drops is renamed or dropped here.

    ``names`` maps source tables to what they are called here; others have the name that they have by default. ``history`` names the
    tables of which all versions are kept, or is true for all of them.
    """

    SHAPING: ClassVar[frozenset[str]] = PROJECTING | {"names", "history"}

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: Literal["warehouse"] = "warehouse"
    url: SecretStr
    schema_name: str | None = Field(None, alias="schema", min_length=1)
    names: Annotated[dict[str, str], AfterValidator(_are_names)] = Field(default_factory=dict)
    history: Annotated[bool | tuple[str, ...], AfterValidator(_are_tables)] = False
    schema_changes: Literal["stop", "keep", "follow"] = "stop"  # type: ignore[assignment]  # one way more than others have
    login: Login = Login()
    tls: Tls | None = None
    connect_timeout_s: int = Field(10, gt=0)
    lock_timeout_s: float = Field(5.0, gt=0)
    idle_in_transaction_timeout_s: float = Field(60.0, gt=0)

    @model_validator(mode="after")
    def _is_of_this_sinks_tables(self) -> "WarehouseSettings":
        """What can be told without the source; ``prepare`` knows the tables."""
        tables = set(_parse_tables(self.tables).values())
        problems = []
        if tables:
            for setting, texts in (("names", self.names), ("history", self._history)):
                strangers = [text for text, name in _parse_tables(texts).items() if name not in tables]
                if strangers:
                    problems.append(f"{setting} has tables that aren't among tables: {', '.join(strangers)}")
        named = tables | set(_parse_tables(self.names).values()) | set(_parse_tables(self._history).values())
        problems += self.called.problems(named)
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def _history(self) -> tuple[str, ...]:
        return () if isinstance(self.history, bool) else self.history

    @property
    def called(self) -> WarehouseNames:
        """What tables are called here."""
        chosen = {TableName.parse(table): called for table, called in self.names.items()}
        return WarehouseNames(chosen, self.history if isinstance(self.history, bool) else self.history_tables)

    @property
    def history_tables(self) -> frozenset[TableName]:
        """The tables that ``history`` names."""
        return frozenset(map(TableName.parse, self._history))

    @property
    def keeps_history(self) -> bool:
        """Whether batches should bring all versions of rows, and not the newest of each key alone."""
        return bool(self.history)
