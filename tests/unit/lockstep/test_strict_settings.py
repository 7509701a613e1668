"""What holds for every model of settings."""

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, Strict, ValidationError
from pydantic.fields import FieldInfo

from lockstep.config import Config


def models_of(kind: Any, seen: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """The models that a value of this type may have in it, each once."""
    for part in get_args(kind):
        yield from models_of(part, seen)
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
        seen.add(kind)
        yield kind
        for field in kind.model_fields.values():
            yield from models_of(field.annotation, seen)


def takes_texts(kind: Any, metadata: list[Any]) -> bool:
    """Whether it is a bool, or has one in it, that a text such as 'off' can be."""
    if get_origin(kind) is Annotated:
        kind, *metadata = get_args(kind)
    if kind is bool:
        return not any(isinstance(each, Strict) and each.strict for each in metadata)
    return any(takes_texts(part, []) for part in get_args(kind))


def test_no_text_is_taken_for_true_or_false() -> None:
    """TOML has both. A text in their place is a mistake, and `"false "` would be none of them."""
    models = list(models_of(Config, set()))
    fields: dict[str, FieldInfo] = {
        f"{model.__name__}.{name}": field for model in models for name, field in model.model_fields.items()
    }
    assert {"TableOptions.append_only", "WarehouseSettings.synced_at"} <= fields.keys()
    assert [name for name, field in fields.items() if takes_texts(field.annotation, field.metadata)] == []


def has_number(kind: Any) -> bool:
    """Whether a number is wanted, at any depth, and no bool may be there."""
    parts = list(kinds_of(kind))
    return bool({int, float} & set(parts)) and bool not in parts


def kinds_of(kind: Any) -> Iterator[Any]:
    yield kind
    for part in get_args(kind):
        yield from kinds_of(part)


def test_true_is_no_number_in_any_setting() -> None:
    """Python takes true for 1: `retention_hours = true` would be an hour."""
    taken = []
    numbers = 0
    for model in models_of(Config, set()):
        for name, field in model.model_fields.items():
            if not has_number(field.annotation):
                continue
            numbers += 1
            for value in (True, [True], {"a": True}):
                try:
                    model.model_validate({field.alias or name: value})
                except ValidationError as error:
                    if any(each["loc"][:1] == (field.alias or name,) for each in error.errors()):
                        continue
                taken.append(f"{model.__name__}.{name} = {value}")
    assert numbers > 20
    assert taken == []
