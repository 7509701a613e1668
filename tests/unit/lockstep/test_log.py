"""Both formats of the log have the same facts, and nobody else's text is a record of it."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cdc.model.errors import ConfigurationError
from cdc.model.log_message import LogMessage
from lockstep.log import LOG_FORMAT_VARIABLE, log_format

_FORGED = 't\n2026-01-01 00:00:00,000 ERROR all is lost\n{"level":"error"}\u2028\x1b[2J'
_FACTS = {"sink": "search", "rows": 3, "columns": ("a", "b"), "done": True, "reason": _FORGED}


def _told(code: str, **environment: str) -> str:
    """What a process writes to standard error that logs and then runs this."""
    start = "import logging; from lockstep.console import *; from cdc.model.log_message import LogMessage;"
    command = [sys.executable, "-c", f"{start} log_to_stderr(); log = logging.getLogger('part'); {code}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return ended.stderr


def _records(code: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in _told(code, **{LOG_FORMAT_VARIABLE: "json"}).split("\n")[:-1]]


def test_a_record_is_one_line_of_json_with_its_facts_as_fields() -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    code = f"log.warning(LogMessage('rows moved', {_FACTS!r}, 'look')); log.info('%s and %d', {_FORGED!r}, 2)"
    first, second = _records(code)
    assert {name: first[name] for name in _FACTS} == {**_FACTS, "columns": ["a", "b"]}
    assert list(first)[:4] == ["time", "level", "logger", "event"]
    assert (first["level"], first["logger"], first["event"]) == ("warning", "part", "rows moved")
    assert first["explanation"] == "look"
    assert second.keys() == {"time", "level", "logger", "event"}
    assert second["event"] == f"{_FORGED} and 2"
    at = str(first["time"])
    assert at.endswith("Z")
    assert before <= datetime.fromisoformat(at) <= datetime.now(UTC)


def test_json_steers_no_terminal_and_has_no_other_ends_of_lines() -> None:
    told = _told(f"log.info({_FORGED!r})", **{LOG_FORMAT_VARIABLE: "json"})
    assert "\x1b" not in told
    assert len(told.splitlines()) == 1


def test_the_console_has_the_same_facts_in_one_line() -> None:
    message = LogMessage("rows moved", {"sink": "search", "rows": 3, "columns": ("a", "b")}, "look")
    assert str(message) == "rows moved sink=search rows=3 columns=a,b: look"
    told = _told(f"log.warning({message!r})", **{LOG_FORMAT_VARIABLE: "console"})
    assert told.endswith(f" WARNING {message}\n")
    assert str(LogMessage("stopped")) == "stopped"


def test_a_trace_is_part_of_its_record() -> None:
    code = "\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    log.exception('it broke')"
    (record,) = _records(code)
    assert record["event"] == "it broke"
    assert str(record["exception"]).endswith("ZeroDivisionError: division by zero")
    first, *others = _told(code).splitlines()
    assert first.endswith(" ERROR it broke")
    assert others[-1] == "    ZeroDivisionError: division by zero"
    assert all(line.startswith("    ") for line in others)


def test_what_is_told_beside_the_log_is_a_record_in_json_too() -> None:
    raising = "from cdc.model.errors import LockstepError\ndef run(): raise LockstepError('gone', hint='look')\n"
    (sentence, error) = _records(f"say('two\\nlines')\n{raising}exit_code_of(run)")
    assert (sentence["event"], sentence["level"]) == ("two\nlines", "info")
    assert (error["event"], error["level"]) == ("error: gone\nlook", "error")


@pytest.mark.parametrize("where", ["1 / 0", "threading.Thread(target=lambda: 1 / 0).start()"])
def test_a_bug_is_a_record_in_json_too(where: str) -> None:
    (record,) = _records(where)
    assert record["level"] == "critical"
    assert str(record["exception"]).endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize(("asked", "found"), [("", "console"), ("console", "console"), ("json", "json")])
def test_the_environment_chooses_the_format(monkeypatch: pytest.MonkeyPatch, asked: str, found: str) -> None:
    monkeypatch.setenv(LOG_FORMAT_VARIABLE, asked)
    assert log_format() == found


def test_another_format_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG_FORMAT_VARIABLE, "xml")
    with pytest.raises(ConfigurationError, match="LOCKSTEP_LOG_FORMAT must be console or json"):
        log_format()


def test_a_command_tells_a_wrong_file_in_the_format_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "lockstep.toml"
    path.write_text('[pipelin]\nname = "x"\n', encoding="utf-8")
    command = [sys.executable, "-m", "lockstep", "run", "--config", str(path)]
    environment = {**os.environ, LOG_FORMAT_VARIABLE: "json"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    (record,) = map(json.loads, ended.stderr.splitlines())
    assert ended.returncode == 2
    assert record["level"] == "error"
    assert "pipelin: unknown section" in record["event"]
