"""Settings of a Delta sink."""

from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field, model_validator

from cdc.model.errors import LockstepError
from cdc.model.table import Table, TableName
from cdc.secret import is_secret_name
from sinks.access import Login
from sinks.delta.names import check_partitions, unfit_tables
from sinks.table_settings import PurgingSettings

# The options for a login's user and password, by the scheme of the root.
_LOGINS: Final = {
    **dict.fromkeys(("s3", "s3a"), ("aws_access_key_id", "aws_secret_access_key")),
    **dict.fromkeys(
        ("az", "azure", "abfs", "abfss", "adl"), ("azure_storage_account_name", "azure_storage_account_key")
    ),
    **dict.fromkeys(("gs", "gcs"), (None, "google_service_account_key")),
}
_SAME: Final = {"s3a": "s3", "gcs": "gs", "azure": "az", "abfs": "abfss"}
"""Other names of a scheme."""
_SCHEMES: Final = ("", "file", "hdfs", "viewfs", *_LOGINS)


_NO_HISTORY: Final = "a Delta sink keeps the newest version of each row alone; a warehouse has histories"
_NOT_HERE: Final = {
    "indexes": "Delta tables have none; `partition_by` divides a table by columns that readers ask for, and files have"
    " the least and greatest values of each column",
    "history": _NO_HISTORY,
    "keep_history_days": _NO_HISTORY,
}
"""Settings of a warehouse that somebody may try here, and what to do instead."""


def _plain_options(options: Mapping[str, str]) -> Mapping[str, str]:
    secrets = [name for name in options if is_secret_name(name)]
    if secrets:
        raise ValueError(
            f"{', '.join(sorted(secrets))}: secrets don't belong in here; "
            "use login, or deltalake's environment variables"
        )
    return options


def _table_names(partitions: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    TableName.parse_all(partitions)
    return partitions


class DeltaSettings(PurgingSettings):
    """Delta tables below ``root``: an absolute path, or an address (``s3://bucket/lake``, ``abfss://``, ``gs://``).

    ``prefix`` begins the name of each directory. ``login`` is the store's key and secret. ``storage_options`` are
    deltalake's other settings of the store. ``partition_by`` names columns by table. Replaced files are deleted after
    ``retention_hours``.
    """

    SHAPING: ClassVar[frozenset[str]] = PurgingSettings.SHAPING | {"partition_by"}
    OWN: ClassVar[frozenset[str]] = PurgingSettings.OWN | {"partition_by"}
    TAKES_APPEND_ONLY: ClassVar[bool] = True
    TLS_ADDRESS: ClassVar[str] = "let the endpoint begin with https"
    NO_WHOLE_STEPS: ClassVar[str] = "each Delta table has commits of its own, and none is of two"
    WHY_NO_SHARDS: ClassVar[str] = (
        "a Delta table has one writer, and a transaction that two shards write would be seen in half"
    )

    type: Literal["delta"] = "delta"
    root: str = Field(min_length=1)
    partition_by: Annotated[Mapping[str, tuple[str, ...]], AfterValidator(_table_names)] = {}
    storage_options: Annotated[Mapping[str, str], AfterValidator(_plain_options)] = {}
    retention_hours: int = Field(24, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _names_nothing_of_a_warehouse(cls, given: object) -> object:
        if isinstance(given, Mapping) and (named := [name for name in _NOT_HERE if name in given]):
            raise ValueError("; ".join(f"{name}: {_NOT_HERE[name]}" for name in named))
        return given

    @model_validator(mode="after")
    def _root_and_login_fit(self) -> Self:
        parts = urlsplit(self.root)
        scheme = parts.scheme
        if not scheme and not Path(self.root).is_absolute():
            raise ValueError("root is neither an absolute path nor an address")
        if scheme not in _SCHEMES or (scheme in _LOGINS and not parts.netloc):
            raise ValueError("root is no address of a store: it looks like s3://bucket/lake, abfss:// or gs://")
        if self.login != Login() and scheme not in _LOGINS:
            raise ValueError("login is for object stores")
        if self.tls is not None:
            raise ValueError("tls: a store's address says it, and storage_options what is trusted")
        return self

    def places(self, name: str) -> Set[tuple[str, ...]]:
        parts = urlsplit(self.root)
        if parts.scheme in ("", "file"):
            path = unquote(parts.path) if parts.scheme else self.root
            return {("file", str(Path(path).resolve()), self.prefix or name)}
        store = _SAME.get(parts.scheme, parts.scheme)
        return {(store, parts.netloc, parts.path.strip("/"), self.prefix or name)}

    def partitions_of(self, table: TableName) -> tuple[str, ...]:
        named = {TableName.parse(text): columns for text, columns in self.partition_by.items()}
        return tuple(named.get(table, ()))

    def problems_with(self, tables: Sequence[Table]) -> list[str]:
        problems = []
        for table in tables:
            try:
                check_partitions(table, self.partitions_of(table.name))
            except LockstepError as error:
                problems.append(error.message)
        return problems + super().problems_with(tables)

    def unfit(self, sink: str, tables: Sequence[Table]) -> Mapping[TableName, LockstepError]:
        return unfit_tables(tables, synced_at=self.synced_at)

    def plain_addresses(self) -> Iterable[str]:
        return [address for address in self.storage_options.values() if address.lower().startswith("http:")]

    @property
    def likes_large_batches(self) -> bool:
        return True  # each batch makes a version of each table that it touches

    def options(self) -> dict[str, str]:
        """deltalake's storage options. Raises LockstepError when a password file can't be read."""
        options = dict(self.storage_options)
        password = self.login.read_password()
        user_option, password_option = _LOGINS.get(urlsplit(self.root).scheme, (None, None))
        if user_option is not None and self.login.user is not None:
            options[user_option] = self.login.user
        if password_option is not None and password is not None:
            options[password_option] = password
        return options
