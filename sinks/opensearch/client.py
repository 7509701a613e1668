"""Requests to an OpenSearch cluster, and its errors as Lockstep's. Only this module knows the client library."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.model.table import TableName
from cdc.settings import Tls
from sinks.access import certificate_refused, untrusted
from sinks.opensearch.answers import RETRY_AFTER_S, TOO_LONG, failure
from sinks.opensearch.aws import Signing
from sinks.opensearch.settings import OpenSearchSettings

Answers = list[tuple[int, Mapping[str, Any] | None]]
"""Status and error of each item of a request."""

# A running node accepts a connection at once. A vanished one would otherwise take as long as a slow request.
_CONNECT_S_MAX: Final = 5.0

_AGAINST_QUERIES: Final = frozenset({"illegal_state_exception", "too_many_clauses"})
"""Types of errors of status 500 that are a query's fault: too many words of the index match, for example."""

_ERROR_TYPE: Final = re.compile(r"\w{1,100}")


class OpenSearchClient:
    """One cluster, reached through any of its nodes. Connects at the first call. Safe to use from several threads.

    A node that refuses connections is skipped, and tried again after a minute. A request that may have reached a node
    is never repeated here: the caller that waits for the server repeats it.
    """

    def __init__(self, settings: OpenSearchSettings) -> None:
        self._settings = settings
        self._where = ", ".join(settings.urls)
        self._client: Any = None

    def bulk(self, body: bytes, count: int) -> Answers | None:
        """Status and error of each item; None if all of them were applied."""
        from opensearchpy.exceptions import TransportError

        parameters = {
            "require_alias": "true",
            "filter_path": "errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by.type",
        }
        with _translated(self._where):
            try:
                answer = self._request("POST", "/_bulk", parameters, body, "application/x-ndjson")
            except TransportError as error:
                if error.status_code == 413:
                    return [(413, {"type": TOO_LONG})] * count
                if error.status_code == 429:  # too much at once: counts as the answer of each item
                    return [(429, {"type": _kind_of(error.error)})] * count
                raise
        if not answer["errors"]:
            return None
        return [(result["status"], result.get("error")) for item in answer["items"] for result in item.values()]

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        parameters: Mapping[str, str] | None = None,
        *,
        missing_ok: bool = False,
        passing_errors: Sequence[str] = (),
    ) -> Any:
        """One request. Returns None for a missing thing with ``missing_ok``, and for an error in ``passing_errors``."""
        from opensearchpy.exceptions import TransportError

        with _translated(self._where):
            try:
                return self._request(method, path, dict(parameters or {}), body, "application/json")
            except TransportError as error:
                if (missing_ok and error.status_code == 404) or error.error in passing_errors:
                    return None
                raise

    def create_index(self, index: str, index_mapping: Mapping[str, Any], index_settings: Mapping[str, Any]) -> None:
        """Create an index with its writing alias, unless it exists."""
        body = {"settings": {"index": index_settings}, "mappings": index_mapping, "aliases": {f"{index}_W": {}}}
        if self.call("HEAD", f"/{index}") is False:
            self.call("PUT", f"/{index}", body, passing_errors=("resource_already_exists_exception",))

    def transport(self) -> Any:
        if self._client is None:
            self._client = _connect(self._settings)
        return self._client.transport

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _request(self, method: str, path: str, parameters: Mapping[str, str], body: Any, content_type: str) -> Any:
        from opensearchpy.exceptions import ConnectionError as NoConnection

        others = len(self._settings.urls) - 1
        while True:
            try:
                headers = {"content-type": content_type}
                return self.transport().perform_request(method, path, params=parameters, body=body, headers=headers)
            except NoConnection as error:
                # The client remembers the failed node and takes another one.
                if not others or not _was_never_sent(error):
                    raise
                others -= 1


def _was_never_sent(error: Any) -> bool:
    """Whether there was no connection through which the request could be sent."""
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    return isinstance(error.info, ConnectTimeoutError | NewConnectionError)


@contextmanager
def _translated(where: str) -> Iterator[None]:
    """Raise the client's errors as Lockstep's, without sentences that may quote a value. ``where`` is the address."""
    from opensearchpy.exceptions import ConnectionError as NoConnection
    from opensearchpy.exceptions import ImproperlyConfigured, SSLError, TransportError

    try:
        yield
    except SSLError as error:
        raise certificate_refused(f"opensearch at {where}", error) or untrusted(
            f"opensearch at {where}", error
        ) from error
    except NoConnection as error:
        if isinstance(error.info, LockstepError):  # the signing raised this, and the client wrapped it
            raise error.info from None
        raise certificate_refused(f"opensearch at {where}", error) or Unavailable(
            f"opensearch doesn't answer at {where}", retry_after_s=RETRY_AFTER_S
        ) from error
    except TransportError as error:
        raise failure(int(error.status_code), _kind_of(error.error)) from error
    except ImproperlyConfigured as error:
        raise ConfigurationError(f"opensearch client: {error}") from error


def _kind_of(error: Any) -> str:
    """The type of the server's error. A proxy or the security plugin answers with its own sentence or page instead."""
    return error if isinstance(error, str) and _ERROR_TYPE.fullmatch(error) else "not in OpenSearch's own words"


@contextmanager
def shaping(table: TableName) -> Iterator[None]:
    """Raise LockstepError with the server's words about a mapping or settings: these sentences contain no rows."""
    try:
        yield
    except LockstepError as error:
        reason = refusal_of(error)
        if reason is None:
            raise
        raise LockstepError(
            f"opensearch refuses the index of table {table}: {reason}",
            hint="mend fields or index_settings of this sink; an index that exists keeps what it was created with, "
            "so that another field type needs a new generation",
        ) from error.__cause__


def refusal_of(error: LockstepError) -> str | None:
    """Why the server refuses a request, or None. Only for requests without rows: its own words may quote them."""
    cause: Any = error.__cause__
    if isinstance(error, Unavailable) or getattr(cause, "status_code", None) != 400:
        return None
    return _innermost(cause.info)[1] or str(cause.error)


def refusal_of_query(error: LockstepError) -> str | None:
    """Why the server refuses a search's query, in its own words; None if something else is wrong.

    An impossible query may also have status 500; then the type of the innermost error decides. Only for requests
    without rows: the sentence may quote them.
    """
    cause: Any = error.__cause__
    if getattr(cause, "status_code", None) != 500:
        return refusal_of(error)
    kind, reason = _innermost(cause.info)
    return (reason or kind) if kind in _AGAINST_QUERIES else None


def _innermost(info: Any) -> tuple[str, str | None]:
    """Type and reason of the root cause. The errors around it name only what the server was doing."""
    error = info.get("error") if isinstance(info, dict) else None
    kind, why = "", None
    while isinstance(error, dict):
        kind, why = error.get("type") or kind, error.get("reason") or why
        error = error.get("caused_by")
    return kind, why


def _connect(settings: OpenSearchSettings) -> Any:
    from opensearchpy import OpenSearch
    from urllib3 import Timeout

    options: dict[str, Any] = {}
    if settings.aws_region is not None:
        options["http_auth"] = Signing(settings.aws_region)
    elif settings.login.user is not None:
        options["http_auth"] = (settings.login.user, settings.login.read_password() or "")
    if any(url.startswith("https:") for url in settings.urls):
        tls = settings.tls or Tls()
        options["verify_certs"] = True
        for option, file in (
            ("ca_certs", tls.ca_file),
            ("client_cert", tls.certificate_file),
            ("client_key", tls.key_file),
        ):
            if file is not None:
                options[option] = str(file)
    # The client logs failed requests with their bodies, which are rows. Each failure is raised as an error anyway.
    logging.getLogger("opensearch").setLevel(logging.CRITICAL)
    # Only the caller waits and repeats: a hidden retry would delay what it reports.
    timeout = Timeout(connect=min(_CONNECT_S_MAX, settings.timeout_s), read=settings.timeout_s)
    return OpenSearch(hosts=list(settings.urls), timeout=timeout, max_retries=0, retry_on_timeout=False, **options)
