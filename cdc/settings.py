"""What all settings share. Each part has a model beside the code that uses it; ``lockstep.config`` composes them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator


class Settings(BaseModel):
    """What all our settings share."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_truth_values(cls, values: object) -> object:
        """Refuse true and false where a number is expected: Python would take them for 1 and 0."""
        if not isinstance(values, Mapping):
            return values
        numbers = {name for name, field in cls.model_fields.items() if _wants_number(field.annotation)}
        numbers |= {field.alias for name, field in cls.model_fields.items() if field.alias and name in numbers}
        return {name: _as_text(value) if name in numbers else value for name, value in values.items()}


class Tls(Settings):
    """TLS towards a server, whose certificate is always checked.

    ``ca_file`` holds the authorities to trust instead of the system's; ``certificate_file`` and ``key_file`` are what
    this client shows of itself.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    def certificate_files(self) -> list[Path]:
        """The files that expire: ours and the authority's."""
        return [path for path in (self.certificate_file, self.ca_file) if path is not None]


def _wants_number(kind: Any) -> bool:
    kinds = set(_kinds_of(kind))
    return bool(kinds & {int, float}) and bool not in kinds


def _kinds_of(kind: Any) -> Iterator[Any]:
    """This type and those nested in it, except for a nested model's fields, which the model checks itself."""
    yield kind
    for part in get_args(kind):
        yield from _kinds_of(part)


def _as_text(value: object) -> object:
    """The value with each true and false replaced by a text, which is no number."""
    if isinstance(value, Mapping):
        return {name: _as_text(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_as_text(part) for part in value]
    return str(value).lower() if isinstance(value, bool) else value
