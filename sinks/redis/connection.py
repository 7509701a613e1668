"""A connection to a Redis or Valkey server, which checks the stored format and translates the server's errors."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from cdc.model.errors import ConfigurationError, DataLost, LockstepError, StoreRefuses, Unavailable
from cdc.model.timeouts import REDIS_ANSWERS_S
from cdc.settings import Tls
from sinks.access import Login
from sinks.redis.errors import is_cluster, translated
from sinks.redis.keys import RedisKeys
from sinks.redis.settings import RedisSettings
from sinks.stored_format import check_stored_format

# redis-py annotates each reply for the synchronous and the asynchronous client at once, which no caller can use.
Client = Any


KEEPS: Final = "noeviction"

_HISTORY: Final = re.compile(r"^master_replid:(\S+)", re.MULTILINE)


class RedisConnection:
    """Connects at the first call.

    A server's stream of writes has a replication id, called its history here. It changes with a restart, and when a
    replica is promoted. With Sentinels, each connection asks for the present primary, so some connections may still
    lead to the former one. Writes to that are lost once it comes back as a replica.
    """

    def __init__(self, name: str, settings: RedisSettings, keys: RedisKeys) -> None:
        self._name = name
        self._settings = settings
        self._keys = keys
        self._client: Client | None = None
        self._format_is_checked = False
        self._required: str | None = None
        self._histories: set[str] = set()

    @property
    def keeps_rows(self) -> bool:
        """Whether rows are stored here, instead of only being removed when they change."""
        return self._settings.mode == "materialise"

    @property
    def histories(self) -> Collection[str]:
        """The histories of all servers that it has been connected to, as far as they report them."""
        return self._histories

    def history(self) -> str | None:
        """The present server's history, or None if it doesn't report it."""
        with self.talking() as client:
            return self.note(history_of(lambda: client.info("replication").get("master_replid")))

    def note(self, history: str | None) -> str | None:
        """Add a history that was found at the server to ``histories``, and return it."""
        if history is not None:
            self._histories.add(history)
        return history

    def require_history(self, history: str) -> None:
        """From now on, a call that would reach a server with another history raises DataLost."""
        self._required = history

    @contextmanager
    def talking(self) -> Iterator[Client]:
        """A client, with the server's errors raised as Lockstep's. Raises LockstepError for another stored format."""
        from redis.exceptions import RedisError

        try:
            if self._client is None:
                self._client = self._connect()
            if not self._format_is_checked:
                check_mode(self._client, self._settings.server)
                if self.keeps_rows:
                    check_keeps(self._client, self._settings.server)
                check_format(self._client, self._name, self._keys)
                self._format_is_checked = True
            yield self._client
        except RedisError as error:
            raise translated(error, f"redis at {self._settings.server}") from error

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connect(self) -> Client:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        settings = self._settings
        url = settings.url.get_secret_value()
        options: dict[str, Any] = {}
        if settings.login.user is not None:
            options["username"] = settings.login.user
        password = settings.login.password
        if password is not None:
            options["password"] = password.get_secret_value()
        if url.startswith("rediss:"):
            tls = settings.tls or Tls()
            options["ssl_cert_reqs"] = "required"
            options["ssl_check_hostname"] = True
            for option, file in (
                ("ssl_ca_certs", tls.ca_file),
                ("ssl_certfile", tls.certificate_file),
                ("ssl_keyfile", tls.key_file),
            ):
                if file is not None:
                    options[option] = str(file)
        options |= {
            "socket_timeout": REDIS_ANSWERS_S,
            "socket_connect_timeout": REDIS_ANSWERS_S,
            "retry": Retry(NoBackoff(), 0),  # only the caller retries
            "redis_connect_func": self._log_in,
        }
        try:
            client = _through_sentinels(settings, options) if settings.sentinels else Redis.from_url(url, **options)
            if settings.login.password_file is not None:
                each = client.connection_pool.connection_kwargs
                each["credential_provider"] = _PasswordFile(settings.login, each.pop("username", None))
            client.connection_pool.make_connection()  # does no I/O, and checks the address's options
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"sinks.{self._name}.url asks for something after its ? that the client doesn't know",
                hint="remove it: login and tls of the sink say what is needed",
            ) from error
        return client

    def _log_in(self, connection: Any) -> None:
        """The client's own login, then a check of the server's history. If anything fails, the connection is closed.

        The client itself closes it only after its own errors. It would take a connection that is left open for logged
        in, and send commands to database 0 as the default user.
        """
        try:
            connection.on_connect()
            self._check(self.note(history_of(lambda: _asked(connection))))
        except BaseException:
            connection.disconnect()
            raise

    def _check(self, history: str | None) -> None:
        if self._required is not None and history not in (None, self._required):
            raise DataLost(
                f"redis at {self._settings.server} has failed over, or was started again: the server of this"
                " connection doesn't have the job's progress"
            )


def _asked(connection: Any) -> str | None:
    """The history of the server to which this connection leads."""
    connection.send_command("INFO", "replication")
    answer = connection.read_response()
    found = _HISTORY.search(answer.decode() if isinstance(answer, bytes) else str(answer))
    return None if found is None else found[1]


def history_of(ask: Callable[[], str | None]) -> str | None:
    """What ``ask`` returns, or None if the user may not call INFO. Raises the client's error if that is temporary."""
    from redis.exceptions import ResponseError

    try:
        return ask()
    except ResponseError as error:
        if isinstance(translated(error), Unavailable):
            raise
        return None


def _through_sentinels(settings: RedisSettings, options: Mapping[str, Any]) -> Client:
    """A client whose connections lead to the primary of their moment. The login isn't used for the Sentinels."""
    from redis import connection, sentinel

    parse: Any = connection.parse_url  # untyped, like Sentinel
    new_sentinels: Any = sentinel.Sentinel
    url = settings.url.get_secret_value()
    of_address = {name: value for name, value in parse(url).items() if name not in _OF_ONE_SERVER}
    if url.startswith("rediss:"):
        of_address["ssl"] = True
    shared = {name: value for name, value in options.items() if name not in _OF_THE_PRIMARY}
    of_sentinels = shared | ({"ssl": True} if "ssl" in of_address else {})
    sentinels = new_sentinels(settings.sentinel_addresses, sentinel_kwargs=of_sentinels)
    return sentinels.master_for(settings.primary, **{**options, **of_address})


_OF_THE_PRIMARY: Final = frozenset({"username", "password", "redis_connect_func"})
"""Options that the Sentinels don't get."""

_OF_ONE_SERVER: Final = frozenset({"host", "port", "connection_class"})
"""What the client library reads from an address, but the Sentinels decide."""


class _PasswordFile:
    """redis-py's source of a password for each new connection: reads the file each time."""

    def __init__(self, login: Login, user: str | None) -> None:
        self._login = login
        self._user = user

    def get_credentials(self) -> tuple[str, ...]:
        """Raises as ``Login.read_password`` does."""
        password = self._login.read_password() or ""
        return (password,) if self._user is None else (self._user, password)


def check_mode(client: Client, server: str) -> None:
    """Raise LockstepError for a server that holds no rows of its own, or only some of them."""
    from redis.exceptions import ResponseError

    try:
        facts = client.info("server")
    except ResponseError:  # not everybody may call INFO; a cluster is noticed by its answers
        return
    mode = facts.get("redis_mode", facts.get("server_mode"))  # Valkey's own name for it
    if mode == "sentinel":
        raise LockstepError(
            f"redis at {server} is a Sentinel, which names the primary and holds no rows",
            hint="let url of this sink be the primary's address, or its name, and sentinels the addresses of the"
            " Sentinels; then run `lockstep doctor`",
        )
    if mode == "cluster":
        raise is_cluster()


def check_keeps(client: Client, server: str) -> None:
    """Raise LockstepError for a server that evicts keys when its memory is full."""
    from redis.exceptions import ResponseError

    try:
        facts = client.info("memory")
    except ResponseError:
        return
    policy = facts.get("maxmemory_policy", KEEPS)
    if policy != KEEPS and facts.get("maxmemory"):
        raise StoreRefuses(
            f"redis at {server} evicts keys when its memory is full (maxmemory-policy {policy}): rows of this sink"
            " would vanish without a message",
            hint="let its owner run CONFIG SET maxmemory-policy noeviction and write it into its configuration; or give"
            " this sink a server of its own; then run `lockstep doctor`",
        )


@dataclass(frozen=True, slots=True)
class Evictions:
    """How many keys of anybody a server has evicted since its process ``run_id`` began."""

    run_id: str
    keys: int

    @classmethod
    def of(cls, client: Client) -> "Evictions":
        """The present number; 0 of an unknown process if the user may not call INFO."""
        from redis.exceptions import ResponseError

        try:
            run_id, keys = client.info("server")["run_id"], client.info("stats")["evicted_keys"]
        except (ResponseError, KeyError):
            return cls("", 0)
        return cls(str(run_id), int(keys))

    def since(self, before: "Evictions") -> int:
        """How many keys at least were evicted after ``before``. A restart or ``CONFIG RESETSTAT`` resets the count."""
        goes_on = self.run_id == before.run_id and self.keys >= before.keys
        return self.keys - before.keys if goes_on else self.keys

    def __str__(self) -> str:
        """As text to be stored; "" if nothing is known."""
        return f"{self.run_id}:{self.keys}" if self.run_id else ""

    @classmethod
    def parse(cls, text: str) -> "Evictions":
        """The inverse of ``str`` if something is known."""
        run_id, _, keys = text.rpartition(":")
        return cls(run_id, int(keys))


def check_format(client: Client, name: str, keys: RedisKeys) -> None:
    """Raise LockstepError if the stored data has another format. An empty sink fits any format."""
    text: bytes | str | None = client.get(keys.format)
    if text is not None and not text.isdigit():
        raise LockstepError(
            f"key {keys.format!r} isn't the number of a stored format",
            hint="another application uses this prefix: set another one for this sink",
        )
    if text is not None:
        check_stored_format(name, int(text), elsewhere="prefix")
    elif client.exists(keys.generations, f"{keys.prefix}:notes"):
        check_stored_format(name, 1, elsewhere="prefix")


def pipelined(client: Client, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """A reply for each command. The reply of a failed command is its error."""
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    return replies
