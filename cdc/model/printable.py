"""Text of others, as people and logs may be shown it: names from a catalogue, reasons of a store, what a row says.

Whoever names a table could otherwise write lines of a log or of a configuration, or steer a terminal.
"""

import json
import re
from typing import Final

_HIDDEN: Final = re.compile(
    # Controls, which move the cursor or begin an escape sequence; separators of lines; marks that turn text around;
    # and halves of a character, which no output can hold.
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_HIDDEN_BUT_LINES: Final = re.compile(f"(?!\n){_HIDDEN.pattern}")


def is_visible(text: str) -> bool:
    """Whether nothing of it would be escaped."""
    return _HIDDEN.search(text) is None


def visible(text: str) -> str:
    r"""The text in one line, with every character that isn't shown as such written as ``\u000a``."""
    return _HIDDEN.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """The same of a message of ours that may have several lines: its line ends stay."""
    return _HIDDEN_BUT_LINES.sub(_escaped, text)


def toml_text(text: str) -> str:
    r"""A string of TOML, ``"a\u000ab"``. JSON's is one but for what it leaves as it is and nobody would see."""
    return visible(json.dumps(text, ensure_ascii=False))


def toml_key(text: str) -> str:
    """A part of a section's name, in the plain quotes of TOML where these can hold it: ``'public.orders'``."""
    return f"'{text}'" if "'" not in text and is_visible(text) else toml_text(text)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
