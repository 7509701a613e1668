"""The settings that every kind of sink has: which tables it gets, and which of their rows and columns."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    StrictBool,
    field_validator,
    model_validator,
)

from cdc.model.append_only import named
from cdc.model.errors import LockstepError
from cdc.model.table import Column, Table, TableName
from cdc.secret import read_secret_file
from cdc.settings import Settings, Tls
from sinks.access import Login
from sinks.view_settings import ViewSettings
from sinks.wrappers.masks import MaskSetting, Salt
from sinks.wrappers.projection import Excluded, Projection, parse_column, parse_columns
from sinks.wrappers.renaming import Renaming

ComputedType = Literal[
    "bool", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "date", "timestamp", "timestamptz", "jsonb"
]
"""The types of computed columns, by PostgreSQL's names."""


class Computed(Settings):
    """A column that the source doesn't have: an SQL expression of PostgreSQL over the source's row, and its type."""

    sql: Annotated[str, Field(min_length=1)]
    type: ComputedType = "text"

    def column(self, name: str) -> Column:
        return Column(name, self.type, self.type, False, _OIDS[self.type], -1)


@dataclass(frozen=True)
class Expressions:
    """What is evaluated for each row of a table: columns by name, and the condition that the row has to meet."""

    columns: Mapping[str, Computed]
    where: str | None


_OIDS: Final[Mapping[str, int]] = {
    "bool": 16, "int2": 21, "int4": 23, "int8": 20, "float4": 700, "float8": 701, "numeric": 1700, "text": 25,
    "date": 1082, "timestamp": 1114, "timestamptz": 1184, "jsonb": 3802,
}  # fmt: skip


def _are_columns(by_column: Mapping[str, object]) -> Mapping[str, object]:
    parse_columns(by_column)
    return by_column


def _are_tables(by_table: Mapping[str, str]) -> Mapping[str, str]:
    TableName.parse_all(by_table)
    if empty := [text for text, condition in by_table.items() if not condition.strip()]:
        raise ValueError("; ".join(f"no condition is given for {text}" for text in empty))
    return by_table


PROJECTING: Final = frozenset({"tables", "exclude", "rename", "mask", "computed", "where", "view"})
"""These shape the data of a generation of any sink."""

NOT_OF_A_VIEW: Final = "a view has no such setting; its query says which rows and columns it has"

_NOT_OF_VIEWS: Final = (
    "exclude", "rename", "mask", "mask_salt", "mask_salt_file", "computed", "where", "schema_changes",
    "consistent",
)  # fmt: skip


class TableSettings(Settings):
    """``tables`` chooses what a sink gets; empty: all tables that have a key.

    ``exclude`` names columns that never get here, and ``rename`` gives columns other names. ``mask`` hides values
    (``sinks.wrappers.masks``); hashes need ``mask_salt_file``, or the salt in the environment. ``computed`` adds
    columns and ``where`` leaves out rows, by PostgreSQL's SQL over the source's row: with the source's names, before
    anything is masked or left out. All but ``tables`` and ``where`` write columns as ``schema.table.column``.

    ``schema_changes``: when the source renames a column, the job ends (``stop``), or the column keeps its old name here
    (``keep``). A column that the source drops stays here, and is null in rows written since. Some kinds also have
    ``follow``: they rename or drop such a column here.

    With ``consistent``, readers that read several tables in one transaction of the store see them as of one commit of
    the source.

    ``max_open_rejections`` is how many rejected rows may be stored; the job stops before there are more.

    ``prefix`` begins the names of everything that the sink creates; by default, the sink's name does. ``login`` and
    ``tls`` are for its server, and win over the address.

    With ``view``, it holds the result of a query over ``tables`` instead of their rows. ``lender`` is the section whose
    store it uses. With ``topic``, the result is also on a topic.
    """

    SHAPING: ClassVar[frozenset[str]] = PROJECTING

    OWN: ClassVar[frozenset[str]] = frozenset({"tables", "prefix", *_NOT_OF_VIEWS})
    """The settings about where a sink's rows are and what it does with which table: no other sink takes them over."""

    NOT_OF_VIEWS: ClassVar[frozenset[str]] = frozenset(_NOT_OF_VIEWS)
    """The settings that mean nothing for a view's result."""

    NO_WHOLE_STEPS: ClassVar[str] = "this kind of sink can't show changes of several tables at once"
    """Why ``consistent`` is refused; "" if it is possible."""

    WHY_NO_SHARDS: ClassVar[str] = ""
    """Why several tasks can't maintain a view in it; "" if they can."""

    TAKES_APPEND_ONLY: ClassVar[bool] = False
    """Whether ``tables`` may name tables without a key (``cdc.model.append_only``)."""

    FOLLOWS_COLUMNS: ClassVar[bool] = False
    """Whether ``schema_changes`` may be ``follow``."""

    TLS_ADDRESS: ClassVar[str] = ""
    """How to encrypt the connections of such a sink, for messages that say they aren't encrypted."""

    type: str = ""
    """The kind of sink."""

    prefix: str | None = Field(None, min_length=1)
    tables: tuple[str, ...] = ()
    exclude: Excluded = ()
    rename: Annotated[Mapping[str, str], AfterValidator(_are_columns)] = {}
    mask: Annotated[Mapping[str, MaskSetting], AfterValidator(_are_columns)] = {}
    mask_salt: SecretStr | None = None
    mask_salt_file: Path | None = None
    computed: Annotated[Mapping[str, Computed], AfterValidator(_are_columns)] = {}
    where: Annotated[Mapping[str, str], AfterValidator(_are_tables)] = {}
    schema_changes: Literal["stop", "keep", "follow"] = "stop"
    max_open_rejections: int = Field(10_000, ge=0)
    consistent: StrictBool = False
    login: Login = Login()
    tls: Tls | None = None
    view: ViewSettings | None = None
    topic: StrictBool = False
    lender: str = ""

    @property
    def contained_tables(self) -> tuple[TableName, ...]:
        """The tables that it holds by its settings: those of ``tables``, or a view's result."""
        return tuple(map(TableName.parse, self.tables)) if self.view is None else (self.view.table,)

    @property
    def likes_large_batches(self) -> bool:
        """Whether a batch of a few rows costs the destination much more than the rows themselves do."""
        return False

    @property
    def libraries(self) -> tuple[str, ...]:
        """Modules of the client's libraries. Loading them opens nothing and starts no thread: forking is safe then."""
        return ()

    @property
    def address(self) -> str:
        """Where its server is, without a password; "" if there is nothing to name."""
        return ""

    @property
    def file_of_one_machine(self) -> str:
        """The setting that names a file which only one machine can write; "" if none does."""
        return ""

    @property
    def takes_sql(self) -> bool:
        """Whether its store is a PostgreSQL database."""
        return False

    @property
    def visible_after_s(self) -> float | None:
        """After how long, at most, readers find an applied row; None if they find it at once."""
        return None

    @property
    def keeps_history(self) -> bool:
        """Whether batches should contain all versions of rows, instead of only the newest of each key."""
        return False

    @property
    def history_tables(self) -> frozenset[TableName]:
        """The tables of which a setting says that all versions are stored."""
        return frozenset()

    def certificate_files(self) -> Iterable[Path]:
        return () if self.tls is None else self.tls.certificate_files()

    def tls_servers(self) -> Iterable[tuple[str, int]]:
        """Host and port of each server whose connections use TLS from the first byte."""
        return ()

    def plain_addresses(self) -> Iterable[str]:
        """Addresses of servers that are reached without TLS, on this machine or another one."""
        return ()

    @field_validator("tables")
    @classmethod
    def _are_table_names(cls, tables: tuple[str, ...]) -> tuple[str, ...]:
        TableName.parse_all(tables)
        return tables

    @field_validator("rename")
    @classmethod
    def _names_are_names(cls, rename: Mapping[str, str]) -> Mapping[str, str]:
        problems = [f"{text}: no name is given" for text, name in rename.items() if not name]
        taken: dict[tuple[TableName, str], str] = {}
        for text, name in rename.items():
            table, _ = parse_column(text)
            other = taken.setdefault((table, name), text)
            if other != text:
                problems.append(f"{other} and {text} would both have the name {name!r}")
        if problems:
            raise ValueError("; ".join(problems))
        return rename

    @model_validator(mode="after")
    def _settings_fit_each_other(self) -> Self:
        excluded = parse_columns(self.exclude)
        left_out = {(table, column) for table, columns in excluded.items() for column in columns}
        left_out |= {parse_column(text) for text, mask in self.mask.items() if mask == "drop"}
        problems = [
            f"{setting}: {text} is left out"
            for setting, columns in (("rename", self.rename), ("mask", self.mask), ("computed", self.computed))
            for text in columns
            if parse_column(text) in left_out and not (setting == "mask" and self.mask[text] == "drop")
        ]
        if self.schema_changes == "follow" and not self.FOLLOWS_COLUMNS:
            problems.append('schema_changes: this kind of sink has no "follow"; it has "stop" and "keep"')
        if "hash" in self.mask.values() and self.mask_salt is None and self.mask_salt_file is None:
            problems.append(
                "mask: a hash needs a salt, else values can be found by trying: set mask_salt_file, or"
                " LOCKSTEP_SINK_<NAME>_SALT in the environment"
            )
        if self.mask_salt is not None and self.mask_salt_file is not None:
            problems.append("mask_salt and mask_salt_file exclude each other")
        if self.consistent and self.view is None:
            problems += [f"consistent: {reason}" for reason in self.why_not_consistent()]
        if self.view is None and self.topic:
            problems.append("topic: it is a view's, and every table has a topic")
        if self.view is None and self.lender:
            problems.append("lender: a view's is its setting `sink`")
        if self.view is not None:
            problems += [f"{name}: {NOT_OF_A_VIEW}" for name in sorted(self.NOT_OF_VIEWS & self._given())]
            problems += [f"tasks: {reason}" for reason in self._why_not_sharded(self.view)]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _why_not_sharded(self, view: ViewSettings) -> list[str]:
        if view.tasks == 1:
            return []
        reasons = [self.WHY_NO_SHARDS] if self.WHY_NO_SHARDS else []
        if self.topic:
            reasons.append(
                "not with topic: it has whole steps, and each shard has steps of its own. Leave one of them out"
            )
        return reasons

    def why_not_consistent(self) -> list[str]:
        """Why its tables can't be shown as of one commit; empty if they can."""
        return [self.NO_WHOLE_STEPS] if self.NO_WHOLE_STEPS else []

    def _given(self) -> set[str]:
        fields = type(self).model_fields
        return {name for name in fields if getattr(self, name) != fields[name].get_default(call_default_factory=True)}

    def clashing_columns(self, tables: Set[TableName]) -> list[str]:
        """Columns in the settings that append-only tables, such as these, have in a sink besides their own."""
        columns = (*self.exclude, *self.rename, *self.mask, *self.computed)
        return [text for text in columns if parse_column(text)[0] in tables and named([parse_column(text)[1]])]

    def named_tables(self) -> set[TableName]:
        """Tables that the settings of columns and rows name."""
        named = {TableName.parse(text) for text in self.where}
        return named | {parse_column(text)[0] for text in (*self.exclude, *self.rename, *self.mask, *self.computed)}

    def places(self, name: str) -> Set[tuple[str, ...]]:
        """Where a sink of this name and these settings stores its rows, in one spelling. No two sinks share a place."""
        return {(name,)}

    def problems_with(self, tables: Sequence[Table]) -> list[str]:
        """Which of this kind's own settings don't fit these tables, given as the destination gets them."""
        return []

    def unfit(self, sink: str, tables: Sequence[Table]) -> Mapping[TableName, LockstepError]:
        """Those of these tables, given as it gets them, that a sink of this name can't hold, each with its error."""
        return {}

    def problems_at_work(self, tables: Sequence[Table]) -> list[str]:
        """Those problems that an existing generation has too."""
        return []

    def may_lack_rows(self, table: TableName) -> bool:
        """Whether rows of the table may rightly be missing."""
        return False

    def salt(self) -> Salt | None:
        """The salt, or None if nothing is hashed. Raises LockstepError when its file can't be read or is empty."""
        if "hash" not in self.mask.values():
            return None
        if self.mask_salt is not None:
            secret = self.mask_salt.get_secret_value()
        else:
            assert self.mask_salt_file is not None
            try:
                secret = read_secret_file(self.mask_salt_file).rstrip("\r\n")
            except OSError as error:
                raise LockstepError(
                    f"mask_salt_file {str(self.mask_salt_file)!r} can't be read: {error.strerror}",
                    hint="check its path and permissions",
                ) from error
        if not secret:
            raise LockstepError("the salt of the hashes is empty", hint="put a long random text into mask_salt_file")
        return Salt(secret.encode())

    def projection(self) -> Projection:
        """What such a sink gets to see of the source's rows. Raises LockstepError when a file can't be read."""
        excluded: dict[TableName, set[str]] = {
            table: set(columns) for table, columns in parse_columns(self.exclude).items()
        }
        masks: dict[TableName, dict[str, MaskSetting]] = {}
        for text, mask in self.mask.items():
            table, column = parse_column(text)
            if mask == "drop":
                excluded.setdefault(table, set()).add(column)
            else:
                masks.setdefault(table, {})[column] = mask
        computed: dict[TableName, list[Column]] = {}
        for text, how in self.computed.items():
            table, name = parse_column(text)
            computed.setdefault(table, []).append(how.column(name))
        return Projection(
            {table: frozenset(columns) for table, columns in excluded.items()},
            masks,
            self.salt(),
            {table: tuple(columns) for table, columns in computed.items()},
            frozenset(map(TableName.parse, self.where)),
        )

    def renaming(self) -> Renaming:
        names: dict[TableName, dict[str, str]] = {}
        for text, name in self.rename.items():
            table, column = parse_column(text)
            names.setdefault(table, {})[column] = name
        return Renaming(names)

    def expressions(self) -> dict[TableName, Expressions]:
        columns: dict[TableName, dict[str, Computed]] = {}
        for text, how in self.computed.items():
            table, name = parse_column(text)
            columns.setdefault(table, {})[name] = how
        where = {TableName.parse(text): condition for text, condition in self.where.items()}
        return {table: Expressions(columns.get(table, {}), where.get(table)) for table in sorted({*columns, *where})}


class PurgingSettings(TableSettings):
    """Settings of a sink that marks deleted rows and keeps them.

    With ``synced_at`` each row holds the time of its last write. ``purge_deleted_after_days`` removes deleted rows for
    good after this time, 0 never. It needs ``synced_at``, which says when the row was deleted.
    """

    SHAPING: ClassVar[frozenset[str]] = PROJECTING | {"synced_at"}
    OWN: ClassVar[frozenset[str]] = TableSettings.OWN | {"purge_deleted_after_days"}

    synced_at: StrictBool = False
    purge_deleted_after_days: float = Field(0.0, ge=0)

    def problems_with(self, tables: Sequence[Table]) -> list[str]:
        return super().problems_with(tables) + self._purge_problems()

    def problems_at_work(self, tables: Sequence[Table]) -> list[str]:
        return super().problems_at_work(tables) + self._purge_problems()

    def _purge_problems(self) -> list[str]:
        if not self.purge_deleted_after_days or self.synced_at:
            return []
        return [
            "purge_deleted_after_days: nothing says since when a row is deleted; set synced_at = true, and rebuild it"
        ]
