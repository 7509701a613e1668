"""How the log is written: lines for people, or one JSON object per record. Both hold the same facts."""

import json
import logging
import os
import traceback
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from cdc.model.errors import ConfigurationError
from cdc.model.log_message import LogMessage
from cdc.model.printable import visible, visible_lines

LogFormat = Literal["console", "json"]
LOG_FORMAT_VARIABLE = "LOCKSTEP_LOG_FORMAT"
"""The environment variable that chooses the format."""


def log_format() -> LogFormat:
    """The format that the environment asks for. Raises ConfigurationError for any other word."""
    asked = os.environ.get(LOG_FORMAT_VARIABLE) or "console"
    if asked not in get_args(LogFormat):
        raise ConfigurationError(f"{LOG_FORMAT_VARIABLE} must be console or json, not {asked!r}")
    return "json" if asked == "json" else "console"


def formatter(log_format: LogFormat) -> logging.Formatter:
    """A formatter for either format. Text that comes from outside can't pass for a record of its own."""
    from structlog.stdlib import ProcessorFormatter  # half of a small command's start, and few of them log

    if log_format == "json":
        return ProcessorFormatter(processors=[_json])
    return ProcessorFormatter(processors=[_lines], fmt="%(asctime)s %(levelname)s %(message)s")


def _lines(_logger: object, _method: str, said: MutableMapping[str, Any]) -> str:
    """Indents every line of a record but the first."""
    trace = _trace(said)
    return visible_lines(said["event"] + (f"\n{trace}" if trace else "")).replace("\n", "\n    ")


def _json(_logger: object, _method: str, said: MutableMapping[str, Any]) -> str:
    """One line, whatever the texts hold. Control characters are escaped as JSON does it."""
    record: logging.LogRecord = said["_record"]
    message = record.msg if isinstance(record.msg, LogMessage) else LogMessage(said["event"])
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    shown: Mapping[str, object] = {
        "time": moment,
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": message.event,
        **message.facts,
    }
    trace = _trace(said)
    optional = {"explanation": message.explanation, "exception": trace}
    shown = {**shown, **{name: text for name, text in optional.items() if text}}
    return visible(json.dumps(shown, ensure_ascii=False, default=str))


def _trace(said: MutableMapping[str, Any]) -> str:
    error = said.get("exc_info")
    return "".join(traceback.format_exception(*error)).rstrip() if error else ""
