"""lockstep.dashboard.access"""

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

import pytest

from lockstep.dashboard.access import BODY_MAX, GUESS_S, Access, Guard

LOCAL = Access(token=None)
OPEN = Access(token="right", host="0.0.0.0")
HOST = {"host": "127.0.0.1:8642"}


def status(access: Access, method: str, path: str, headers: Mapping[str, str] = HOST) -> int | None:
    refused = access.refusal(method, path, headers)
    return None if refused is None else refused.status


def session(access: Access) -> dict[str, str]:
    return {"cookie": access.cookie(HOST["host"]).partition(";")[0]}


POST = {**HOST, "content-length": "2"}


@pytest.mark.parametrize("host", ["127.0.0.1:8642", "localhost:8642", "LOCALHOST", "[::1]:8642"])
def test_this_machine_is_answered_by_its_own_names(host: str) -> None:
    assert status(LOCAL, "GET", "/api/pipeline", {"host": host}) is None


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:8642", "localhost.evil.example", "127.0.0.1.nip.io"]
)
def test_another_name_for_this_machine_is_refused(host: str) -> None:
    assert status(LOCAL, "GET", "/", {"host": host}) == 403


@pytest.mark.parametrize("name", ["x-forwarded-for", "x-forwarded-host", "forwarded", "via", "x-real-ip"])
def test_what_a_proxy_has_passed_on_needs_a_token(name: str) -> None:
    """A proxy for other machines speaks to the loopback address as this machine does."""
    assert status(LOCAL, "GET", "/api/pipeline", HOST | {name: "1"}) == 403
    with_token = Access("right")
    behind = {"host": "page.example", name: "1", "authorization": "Bearer right"}
    assert status(with_token, "GET", "/api/pipeline", behind) is None
    assert status(with_token, "GET", "/api/pipeline", behind | {"authorization": "Bearer wrong"}) == 401


async def _answer(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


def _status_of(guard: Guard, headers: Mapping[str, str]) -> int:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in {**HOST, **headers}.items()]
    asyncio.run(guard({"type": "http", "method": "GET", "path": "/api/pipeline", "headers": raw}, None, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_sites_page_starts_nothing(site: str) -> None:
    for access, more in ((LOCAL, {}), (OPEN, {"authorization": "Bearer right"})):
        assert status(access, "GET", "/api/findings", {**HOST, **more, "sec-fetch-site": site}) == 403
        assert status(access, "GET", "/", {**HOST, **more, "sec-fetch-site": site}) is None, "a link leads here"
        for own in ("same-origin", "none"):
            assert status(access, "GET", "/api/findings", {**HOST, **more, "sec-fetch-site": own}) is None


def test_wrong_tokens_are_counted_and_take_their_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waited = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    guard = Guard(_answer, OPEN)
    for _ in range(5):
        assert _status_of(guard, {"authorization": "Bearer guessed"}) == 401
    assert _status_of(guard, {}) == 401, "a browser asks without one first"
    assert _status_of(guard, {"authorization": "Bearer right"}) == 200
    assert waited == [GUESS_S] * 5
    assert [record.getMessage() for record in caplog.records] == [
        f"a wrong token was given {times} since the server started" for times in ("once", "2 times", "4 times")
    ]
    assert "guessed" not in caplog.text


@pytest.mark.parametrize("path", ["/api/key", "/views/v/changes"])
def test_rows_need_the_session(path: str) -> None:
    assert status(LOCAL, "GET", path, HOST) == 401
    assert status(LOCAL, "GET", path, HOST | {"cookie": "lockstep_session_8642=wrong"}) == 401
    assert status(LOCAL, "GET", path, HOST | session(Access(None))) == 401, "another start's session"
    assert status(LOCAL, "GET", path, HOST | session(LOCAL)) is None


def test_a_page_beside_the_own_ones_gives_the_session_and_what_is_below_it_needs_it() -> None:
    access = Access(token=None, page="/demo/timeline")
    assert status(access, "GET", "/demo/timeline") is None
    assert [access.gives_session("GET", path) for path in ("/demo/timeline", "/demo/timeline/people", "/")] == [
        True,
        False,
        True,
    ]
    for method, path in (("GET", "/demo/timeline/people"), ("POST", "/demo/timeline/tweet")):
        assert status(access, method, path, POST) == 401
        assert status(access, method, path, POST | session(access)) is None
    elsewhere = POST | session(access) | {"origin": "http://evil.example"}
    assert status(access, "POST", "/demo/timeline/tweet", elsewhere) == 403
    assert not LOCAL.gives_session("GET", "/demo/timeline")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", ""])
def test_a_page_of_another_server_gets_nothing_done(origin: str) -> None:
    assert status(LOCAL, "POST", "/api/wait", POST | session(LOCAL) | {"origin": origin}) == 403


def test_the_own_page_gets_something_done() -> None:
    headers = POST | session(LOCAL) | {"origin": "http://127.0.0.1:8642"}
    assert status(LOCAL, "POST", "/api/wait", headers) is None


@pytest.mark.parametrize(
    "given",
    [
        {"authorization": "Bearer right"},
        {"authorization": "bearer right"},
        {"authorization": "Basic " + base64.b64encode(b"anybody:right").decode()},
    ],
)
def test_the_token_is_taken_in_each_form(given: dict[str, str]) -> None:
    for method, path in (("GET", "/"), ("GET", "/api/key"), ("POST", "/api/wait")):
        assert status(OPEN, method, path, POST | given) is None


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer "},
        {"authorization": "Basic right"},
        {"authorization": "Basic " + base64.b64encode(b"right:wrong").decode()},
        {"authorization": "Bearer r\u00efght"},
        {"cookie": "lockstep_session_8642=; lockstep_session="},
    ],
)
def test_without_the_token_nothing_is_answered_but_probes(given: dict[str, str]) -> None:
    for path in ("/", "/static/page.css", "/api/pipeline", "/api/events", "/api/openapi.json", "/metrics"):
        assert status(OPEN, "GET", path, HOST | given) == 401
    assert status(OPEN, "POST", "/api/wait", POST | given) == 401
    assert status(OPEN, "GET", "/healthz", HOST | given) is None
    assert status(OPEN, "GET", "/readyz", HOST | given) is None


def test_a_token_counts_on_loopback_as_well() -> None:
    access = Access(token="right")
    assert status(access, "GET", "/api/pipeline") == 401
    assert status(access, "GET", "/api/pipeline", HOST | {"authorization": "Bearer right"}) is None


def test_a_body_is_bounded_and_says_how_long_it_is() -> None:
    known = HOST | session(LOCAL)
    assert status(LOCAL, "POST", "/api/wait", known | {"content-length": str(BODY_MAX)}) is None
    assert status(LOCAL, "POST", "/api/wait", known | {"content-length": str(BODY_MAX + 1)}) == 413
    assert status(LOCAL, "POST", "/api/wait", known) == 411
    assert status(LOCAL, "POST", "/api/wait", known | {"content-length": "-1"}) == 411
    chunked = known | {"content-length": "1", "transfer-encoding": "chunked"}
    assert status(LOCAL, "POST", "/api/wait", chunked) == 411, "of the two lengths, that of the chunks counts"
    assert status(LOCAL, "GET", "/api/pipeline", known | {"transfer-encoding": "chunked"}) == 411


@pytest.mark.parametrize(("access", "challenge"), [(OPEN, b'Basic realm="Lockstep", charset="UTF-8"'), (LOCAL, None)])
def test_only_where_a_token_helps_a_browser_asks_for_it(access: Access, challenge: bytes | None) -> None:
    started: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        started.append(message)

    raw = [(name.encode(), value.encode()) for name, value in HOST.items()]
    asyncio.run(Guard(None, access)({"type": "http", "method": "GET", "path": "/api/key", "headers": raw}, None, send))
    assert started[0]["status"] == 401
    assert dict(started[0]["headers"]).get(b"www-authenticate") == challenge


def test_two_servers_of_one_machine_have_cookies_of_their_own() -> None:
    assert LOCAL.cookie_name("127.0.0.1:1") != LOCAL.cookie_name("127.0.0.1:2")


def test_a_session_never_shows() -> None:
    assert LOCAL.session not in repr(LOCAL)
