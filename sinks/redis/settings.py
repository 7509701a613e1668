"""Settings of a Redis sink."""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Annotated, ClassVar, Final, Literal, Self, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import orjson
from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from cdc.model.table import Table, TableName
from sinks.access import same_host, same_server, split_address
from sinks.redis.layout import Layout, Template
from sinks.table_settings import PROJECTING, TableSettings

_Of = TypeVar("_Of")

_ADDRESS: Final = "redis://host:6379/0, rediss://host:6379/0 with TLS, or unix:///path/of/the.sock"


def _are_tables(by_table: Mapping[str, _Of]) -> Mapping[str, _Of]:
    TableName.parse_all(by_table)
    return by_table


_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379


def _are_addresses(sentinels: tuple[str, ...]) -> tuple[str, ...]:
    for address in sentinels:
        parts = split_address(f"//{address}", looks_like="host:26379")
        if parts.path or parts.query or parts.username or parts.password:
            raise ValueError("a Sentinel's address looks like host:26379")
    return sentinels


_ByTable = Annotated[Mapping[str, _Of], AfterValidator(_are_tables)]


class RedisSettings(TableSettings):
    """A Redis or Valkey server. ``rediss://`` in the address switches TLS on.

    With ``sentinels``, the address has the name by which these Sentinels know the primary, instead of a host and port.

    ``prefix`` is the first part of every key. ``values`` stores a row as one JSON text, or as a field per column.
    ``mode`` decides whether rows are stored here, or only removed when they change.

    By table: ``keys`` is the template of its rows' keys; by default they begin with ``schema.table``. ``sets`` are
    templates of sets that hold its rows' keys. ``ttl_s`` is after how many seconds without a change a row expires.
    """

    LAYOUT_SETTINGS: ClassVar[frozenset[str]] = frozenset({"keys", "values", "sets", "ttl_s", "mode"})
    """Settings that decide a row's key and form. Changing one needs a rebuild."""

    SHAPING: ClassVar[frozenset[str]] = PROJECTING | LAYOUT_SETTINGS
    OWN: ClassVar[frozenset[str]] = TableSettings.OWN | {"keys", "sets", "ttl_s", "mode"}
    NOT_OF_VIEWS: ClassVar[frozenset[str]] = TableSettings.NOT_OF_VIEWS | {"mode"}
    TLS_ADDRESS: ClassVar[str] = "let the address begin with rediss"
    NO_WHOLE_STEPS: ClassVar[str] = (
        "rows are written to Redis one by one, and readers see each at once; a warehouse in PostgreSQL can be"
    )

    type: Literal["redis"] = "redis"
    url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    sentinels: Annotated[tuple[str, ...], AfterValidator(_are_addresses)] = ()
    keys: _ByTable[str] = Field(default_factory=dict)
    values: Literal["json", "fields"] = "json"
    sets: _ByTable[tuple[str, ...]] = Field(default_factory=dict)
    ttl_s: _ByTable[int] = Field(default_factory=dict)
    mode: Literal["materialise", "invalidate"] = "materialise"
    tombstone_ttl_s: int = Field(24 * 60 * 60, gt=0)
    max_value_bytes: int = Field(64 * 1024 * 1024, gt=0, le=511 * 1024 * 1024)

    @property
    def libraries(self) -> tuple[str, ...]:
        return ("redis",)

    @property
    def address(self) -> str:
        return urlsplit(self.url.get_secret_value()).netloc.rpartition("@")[2]

    def tls_servers(self) -> Iterable[tuple[str, int]]:
        parts = urlsplit(self.url.get_secret_value())
        if parts.scheme != "rediss":
            return []
        return self.sentinel_addresses or [(parts.hostname or "", parts.port or _PORT)]

    def plain_addresses(self) -> Iterable[str]:
        url = self.url.get_secret_value()
        if urlsplit(url).scheme != "redis":
            return []
        return [f"redis://{address}" for address in self.sentinels] or [url]

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: SecretStr) -> SecretStr:
        text = url.get_secret_value()
        if text.startswith("unix://"):
            return url
        parts = split_address(text, looks_like=_ADDRESS)
        # The client library would take database 0 if the path is no number.
        if parts.scheme not in ("redis", "rediss") or not re.fullmatch(r"(/\d*)?", parts.path):
            raise ValueError(f"an address looks like {_ADDRESS}")
        return url

    @model_validator(mode="after")
    def _layout_fits(self) -> Self:
        layout, problems = self._parsed()
        problems += layout.problems()
        parts = urlsplit(self.url.get_secret_value())
        if self.sentinels and (parts.scheme == "unix" or parts.port is not None):
            problems.append("sentinels say where the primary is: url has its name instead, as redis://shop/0")
        if self.tls is not None and not self.url.get_secret_value().startswith("rediss:"):
            problems.append("tls is set, and the address doesn't begin with rediss: let it, or remove tls")
        held = set(self.contained_tables)
        problems += [f"this sink has no table {name}" for name in sorted(layout.named()) if held and name not in held]
        if self.mode == "invalidate" and self.sets:
            problems.append("sets can't be kept with mode = 'invalidate': the rows aren't here")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def layout(self) -> Layout:
        return self._parsed()[0]

    @property
    def primary(self) -> str:
        """The name by which the Sentinels know the primary."""
        return urlsplit(self.url.get_secret_value()).netloc.rpartition("@")[
            2
        ]  # unlike a host's, the name's case matters

    @property
    def sentinel_addresses(self) -> list[tuple[str, int]]:
        parts = [urlsplit(f"//{address}") for address in self.sentinels]
        return [(part.hostname or "", part.port or _SENTINEL_PORT) for part in parts]

    @property
    def server(self) -> str:
        """Where it is, without credentials."""
        parts = urlsplit(self.url.get_secret_value())
        if self.sentinels:
            return f"{self.primary} of the Sentinels {', '.join(self.sentinels)}"
        return unquote(parts.path) if parts.scheme == "unix" else same_server(parts, default_port=_PORT)

    def problems_with(self, tables: Sequence[Table]) -> list[str]:
        return self.layout.problems_with(tables)

    def named_tables(self) -> set[TableName]:
        return super().named_tables() | self.layout.named()

    def places(self, name: str) -> Set[tuple[str, ...]]:
        text = self.url.get_secret_value()
        parts = urlsplit(text)
        database = dict(parse_qsl(parts.query)).get("db")
        if parts.scheme != "unix":
            database = database or parts.path.strip("/")
        servers = {f"{self.primary} of {same_host(host)}:{port}" for host, port in self.sentinel_addresses}
        return {(server, (database or "").lstrip("0"), self.prefix or name) for server in servers or {self.server}}

    def may_lack_rows(self, table: TableName) -> bool:
        """Rows may have expired, or nobody has asked for them yet."""
        return self.mode == "invalidate" or table in self.layout.ttl_s

    def _parsed(self) -> tuple[Layout, list[str]]:
        """The layout without invalid templates, and what is wrong with these."""
        problems = []
        keys, sets = {}, {}
        for name, text in self.keys.items():
            try:
                keys[TableName.parse(name)] = Template.parse(text)
            except ValueError as error:
                problems.append(f"keys: {error}")
        for name, texts in self.sets.items():
            templates = []
            for text in texts:
                try:
                    templates.append(Template.parse(text))
                except ValueError as error:
                    problems.append(f"sets: {error}")
            sets[TableName.parse(name)] = tuple(templates)
        ttl_s = {TableName.parse(name): seconds for name, seconds in self.ttl_s.items()}
        return Layout(keys, sets, ttl_s, has_fields=self.values == "fields"), problems


def settings_text(settings: RedisSettings) -> str:
    """The settings that make a generation's layout, as JSON."""
    shaping = settings.model_dump(mode="json", include=set(settings.LAYOUT_SETTINGS))
    return orjson.dumps(shaping, option=orjson.OPT_SORT_KEYS).decode()
