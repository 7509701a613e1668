"""Makes foreign text safe to show and log: catalogue names, reasons from a store, values of a row. Otherwise the author
of a table's name could forge lines of a log or of a configuration, or control a terminal."""

import json
import re
from typing import Final

_HIDDEN: Final = re.compile(
    # Controls, which move the cursor or begin an escape sequence; line separators; marks that reverse text; and
    # surrogates, which no output can encode.
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_HIDDEN_BUT_LINES: Final = re.compile(f"(?!\n){_HIDDEN.pattern}")


def is_visible(text: str) -> bool:
    """Whether ``visible`` would escape nothing."""
    return _HIDDEN.search(text) is None


def visible(text: str) -> str:
    r"""The text in one line. Characters that aren't shown as such become ``\u000a`` escapes."""
    return _HIDDEN.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """``visible`` for a message of several lines: line ends stay."""
    return _HIDDEN_BUT_LINES.sub(_escaped, text)


def toml_text(text: str) -> str:
    r"""A TOML string, ``"a\u000ab"``: JSON's, with hidden characters escaped that JSON leaves as they are."""
    return visible(json.dumps(text, ensure_ascii=False))


def toml_key(text: str) -> str:
    """A part of a section's name, in TOML's literal quotes if they can hold it: ``'public.orders'``."""
    return f"'{text}'" if "'" not in text and is_visible(text) else toml_text(text)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
