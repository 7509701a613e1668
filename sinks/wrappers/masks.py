"""Masks: what a destination gets to see instead of a column's values (pure).

=====================  =========================================================================================
``"drop"``             nothing: the column is left out, as with ``exclude``
``"hash"``             HMAC-SHA-256 of the value under the sink's salt, 64 hex digits: equal values stay equal
``{ truncate = 3 }``   the first characters of the value's text
=====================  =========================================================================================

Null stays null. A value that isn't text is masked in the form that it has in events. A masked column is text.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from cdc.model.event import JsonValue, value_text
from cdc.settings import Settings


class Truncation(Settings):
    truncate: Annotated[int, Field(ge=0)]


MaskSetting = Literal["drop", "hash"] | Truncation
"""One column's mask, as in the configuration file."""

_SALT_MARK: Final = b"lockstep: which salt is this?"


@dataclass(frozen=True, slots=True)
class Salt:
    """A sink's secret for hashes. Without it, nobody can find a value by trying."""

    secret: bytes

    @property
    def mark(self) -> str:
        """16 hex digits that identify the salt without revealing it."""
        return hmac.digest(self.secret, _SALT_MARK, "sha256").hex()[:16]

    def hash(self, value: JsonValue) -> str:
        return hmac.digest(self.secret, value_text(value).encode(), hashlib.sha256).hex()

    def __repr__(self) -> str:
        return "Salt(...)"


def masked(value: JsonValue, mask: MaskSetting, salt: Salt | None) -> JsonValue:
    """What a destination sees of a value. ``drop`` never gets here: such a column is left out."""
    if value is None:
        return None
    if isinstance(mask, Truncation):
        return value_text(value)[: mask.truncate]
    assert mask == "hash"
    assert salt is not None, "settings with a hash have a salt"
    return salt.hash(value)
