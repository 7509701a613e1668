"""What the commands of operations hand on of their options."""

import io
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from rich.console import Console

from cdc.model.errors import Unavailable
from cdc.model.lsn import Lsn
from lockstep.cli.main import exit_code
from lockstep.console import say
from monitor.lag import LagReport, SourceFacts, report
from monitor.tail import Line
from monitor.waits import Waited

CONFIG = """\
[pipeline]
name = "p"
[source]
dsn = "host=nowhere dbname=app"
tables = ["public.t"]
[kafka]
bootstrap_servers = "nowhere:1"
[sinks.search]
type = "opensearch"
urls = ["http://nowhere:1"]
[sinks.cache]
type = "redis"
url = "redis://nowhere:1"
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "lockstep.toml"
    path.write_text(CONFIG)
    return str(path)


class Called:
    """Stands where the work would be done, and keeps what it was asked for."""

    def __init__(self, result: object) -> None:
        self.result = result
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, _: object, *arguments: Any, **options: Any) -> object:
        self.calls.append((arguments, options))
        return self.result


NEITHER = {"switch_over": False, "trimmed": False, "as_json": False}


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ([], NEITHER),
        (["--switch"], NEITHER | {"switch_over": True}),
        (["--trimmed", "--json"], NEITHER | {"trimmed": True, "as_json": True}),
    ],
)
def test_a_rebuild_is_done_as_its_flags_say(
    flags: list[str], options: dict[str, bool], config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebuild = Called(3)
    monkeypatch.setattr("lockstep.rebuild.display.run_rebuild", rebuild)
    assert exit_code(["rebuild", "search", *flags, "--config", config]) == 3
    assert rebuild.calls == [(("search",), options)]


@pytest.mark.parametrize(
    ("flags", "number", "back"), [([], None, False), (["--back"], None, True), (["--generation", "2"], 2, False)]
)
def test_a_switch_goes_where_its_flags_say(
    flags: list[str],
    number: int | None,
    back: bool,
    config: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    switch = Called((1, 2))
    monkeypatch.setattr("lockstep.generations.switch_to", switch)
    assert exit_code(["switch", "search", *flags, "--config", config]) == 0
    assert switch.calls == [(("search",), {"number": number, "back": back, "say": say})]
    assert "readers of search see generation 2 now; before, it was 1" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "code", "told"), [("y", 0, "is gone"), ("n", 1, "nothing was removed")])
def test_a_generation_is_dropped_once_somebody_has_agreed(
    answer: str,
    code: int,
    told: str,
    config: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def drop(*_: object, agreed: Callable[[str], bool]) -> bool:
        return agreed("remove?")

    monkeypatch.setattr("lockstep.generations.drop", drop)
    monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
    assert exit_code(["generations", "search", "--drop", "2", "--config", config]) == code
    assert told in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert exit_code(["generations", "search", "--drop", "2", "--yes", "--config", config]) == 0


def test_a_switch_back_goes_to_no_chosen_generation(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["switch", "search", "--back", "--generation", "2", "--config", config]) == 2
    assert "--back and --generation exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("wait", "--timeout", "-1"),
        ("wait", "--timeout", "nan"),
        ("wait", "--sink", "serach"),
        ("tail", "public.t", "--count", "0"),
        ("verify", "search", "--generation", "0"),
        ("switch", "search", "--generation", "-1"),
        ("generations", "search", "--drop", "0"),
        ("generations", "search", "--drop", "1", "--json"),
        ("generations", "search", "--drop", "1"),  # there is no terminal to ask
        ("rejections", "list", "--generation", "0"),
        ("rejections", "retry", "search", "--all", "--generation", "0"),
        ("demo", "--rate", "0"),
        ("demo", "--seconds", "0"),
        ("demo", "--json"),
        ("verify", "search", "--against", "yesterday"),
        ("verify", "search", "--against", "2", "--repair"),
        ("verify", "search", "--table", "nonsense"),
        ("verify", "search", "--keys", "{"),
        ("rejections", "discard", "search", "--reason", "", "--yes"),
        ("rejections", "retry", "search", "--reason", " "),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error_before_any_server_is_asked(
    config: str, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(config).parent)
    assert exit_code(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert {path.name for path in Path(config).parent.iterdir()} == {"lockstep.toml"}


class Rounds:
    """Stands where signals are waited for: tells to stop after so many rounds."""

    def __init__(self) -> None:
        self.left = 3

    def __call__(self) -> bool:
        return self.left == 0

    def wait(self, _: float) -> bool:
        self.left -= 1
        return self()


class Collecting:
    """A collector to which the second question has no answer."""

    def __init__(self, *_: object, **__: object) -> None:
        self.asked = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def collect(self, *, with_jobs: bool = True) -> LagReport:
        self.asked += 1
        if self.asked == 2:
            raise Unavailable("Kafka doesn't answer [/x]")
        return report(SourceFacts(100, 100, 100, 1, True, 0), [], now_ms=1)


@pytest.mark.parametrize(("flags", "shown", "times"), [([], "the slot retains", 1), (["--json"], '{"stages"', 2)])
def test_a_watched_lag_in_a_pipe_has_few_lines_or_a_document_each_time_and_outlives_a_server(
    config: str,
    flags: list[str],
    shown: str,
    times: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lockstep.console.StopOnSignals", Rounds)
    monkeypatch.setattr("monitor.collector.LagCollector", Collecting)
    monkeypatch.setattr("lockstep.terminal.out", Console(file=None))
    assert exit_code(["lag", "--config", config, "--watch", *flags]) == 0
    printed = capsys.readouterr()
    assert printed.out.count(shown) == times
    assert printed.err == "Kafka doesn't answer [/x]\n"


class WaitedInVain:
    """The one sink that is waited for is late."""

    def __init__(self, _: object, sinks: Collection[str]) -> None:
        assert set(sinks) == {"cache"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def wait(self, lsn: int, *, timeout_s: float) -> Waited:
        return Waited(lsn, {"cache": f"it isn't there after {timeout_s:.0f} s"})


@pytest.fixture
def in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.postgres.connection.connect", lambda *_, **__: nullcontext())
    monkeypatch.setattr("cdc.postgres.slot.emit_heartbeat", lambda _: Lsn(200))
    monkeypatch.setattr("monitor.waits.Waits", WaitedInVain)


@pytest.mark.usefixtures("in_vain")
def test_a_server_that_is_gone_when_the_wait_is_over_does_not_hide_that_it_was_in_vain(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waited in vain asks once more, for what is wrong with the jobs."""

    class Refused(Collecting):
        def collect(self, *, with_jobs: bool = True) -> LagReport:
            raise Unavailable("Kafka doesn't answer [/x]")

    monkeypatch.setattr("monitor.collector.LagCollector", lambda *_: Refused())
    assert exit_code(["wait", "--config", config, "--timeout", "0", "--sink", "cache"]) == 1
    assert capsys.readouterr().err.splitlines()[:3] == [
        "error: not everything up to 0/C8 was applied in 0 s",
        "cache: it isn't there after 0 s",
        "Kafka doesn't answer [/x]",
    ]


@pytest.mark.usefixtures("in_vain")
def test_whoever_waits_in_vain_for_ever_learns_what_is_wrong_with_that_sink_alone(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that was killed takes seconds to tell from one that hangs, and may be another sink's."""

    class Asked(Collecting):
        def __init__(self, _: object, sinks: Collection[str]) -> None:
            super().__init__()
            assert set(sinks) == {"cache"}

        def collect(self, *, with_jobs: bool = True) -> LagReport:
            assert with_jobs
            lag = report(SourceFacts(100, 100, 100, 1, True, 0), [], now_ms=1)
            return replace(lag, paused_copies=("public.t",))

    monkeypatch.setattr("monitor.collector.LagCollector", Asked)
    assert exit_code(["wait", "--config", config, "--timeout", "inf", "--sink", "cache"]) == 1
    told = capsys.readouterr().err
    assert "not everything up to 0/C8" in told
    assert "the copy of public.t is paused" in told


def test_an_event_is_in_the_pipe_before_the_next_is_waited_for(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.BytesIO()
    seen: list[bytes] = []

    def follow(*_: object, **__: object) -> Iterator[Line]:
        yield Line("event")
        seen.append(pipe.getvalue())

    monkeypatch.setattr("monitor.tail.follow", follow)
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BufferedWriter(pipe)))  # type: ignore[type-var]
    assert exit_code(["tail", "public.t", "--config", config]) == 0
    assert seen == [b"event\n"]


class NoRejections:
    """A pipeline without a rejection."""

    tables: ClassVar[dict[str, object]] = {}

    def __init__(self, _: object) -> None: ...

    def read(self, *_: object) -> tuple[list[object], list[object]]:
        return [], []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "no rejections"),
        (["search"], "no rejections"),
        (["saerch"], "no rejections of saerch, which is no sink of this configuration"),
    ],
)
def test_a_sink_without_rejections_that_is_not_there_is_told(
    config: str,
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lockstep.rejections.open_records.OpenRecords", NoRejections)
    assert exit_code(["rejections", "list", *arguments, "--config", config]) == 0
    assert capsys.readouterr().err == f"{sentence}\n"
