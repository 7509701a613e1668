"""``[views.NAME]`` -> one more sink of that name, before anything is validated.

A view names the sink whose store, address and login it takes. So everything that knows sinks knows views.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, get_args

from cdc.model.table import TableName
from sinks.registry import SinkSettings
from sinks.table_settings import NOT_OF_A_VIEW, TableSettings
from sinks.view_settings import VIEWS_SCHEMA
from views.failures import Refused

if TYPE_CHECKING:
    from views.sql.over_views import NamedQuery

_OWN: Final = ("sink", "sql", "key", "top", "retain", "tasks")
"""Settings of a view's section beyond those of its kind of sink."""

_BEYOND_QUERY: Final = ("top", "retain")
"""With these, a view's result isn't that of its query alone."""

_OF_ITS_SINK: Final = {
    "apply": "a view is always applied: remove it, or say so of a sink",
    "type": "a view has the store of its sink: remove it, or name another sink",
}

_MODELS: Final[Mapping[str, type[TableSettings]]] = {
    model.model_fields["type"].default: model for model in get_args(get_args(SinkSettings)[0])
}


SINK_TYPES: Final = ", ".join(map(repr, _MODELS))


def problem_of_type(kind: Any) -> str:
    """What is wrong with the ``type`` of a sink that has no known one; ``kind`` None: it has none."""
    return f"is missing: {SINK_TYPES}" if kind is None else f"{kind!r} is none of {SINK_TYPES}"


def with_views(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The document with views among its sinks, and without sinks that only lend their address to views. Also returns
    the problems of views that the models won't find. Such a view isn't among the sinks."""
    rest = {name: value for name, value in document.items() if name != "views"}
    sinks = document.get("sinks", {})
    views = document.get("views", {})
    if not isinstance(views, dict):
        return rest, ["views: must be a section, or a table in { }"]
    if not isinstance(sinks, dict):
        return rest, []
    problems = list[str]()
    lends, made = dict[str, Any](), dict[str, Any]()
    for name, section in sinks.items():
        if isinstance(section, dict) and "apply" in section:
            if not isinstance(section["apply"], bool):
                problems.append(f"sinks.{name}.apply: true or false")
            lends[name] = section["apply"]
            if section["apply"] is False and kind_of_sink(section) is None:  # the models get no such section
                problems.append(f"sinks.{name}.type: {problem_of_type(section.get('type'))}")
    used = set[str]()
    for name, section in views.items():
        if isinstance(section, dict) and isinstance(section.get("sink"), str):
            used.add(section["sink"])
        try:
            made[name] = _as_sink(name, section, sinks, views)
        except _Unfit as unfit:
            problems += unfit.problems
    used |= {
        section["lender"]
        for sections in rest.values()
        if isinstance(sections, dict) and sections is not sinks
        for section in sections.values()
        if isinstance(section, dict) and "lender" in section
    }
    problems += [
        f"sinks.{name}.apply is false, and nothing names the sink, as a view does: name it in one, or remove it"
        for name, applies in lends.items()
        if applies is False and name not in used
    ]
    plain = {
        name: {key: value for key, value in section.items() if key != "apply"} if name in lends else section
        for name, section in sinks.items()
        if lends.get(name) is not False
    }
    return rest | ({"sinks": plain | made} if "sinks" in document else {}), problems


def kind_of_sink(section: Mapping[str, Any]) -> type[TableSettings] | None:
    """The settings class of a section's kind of sink; None if it names none."""
    kind = section.get("type")
    return _MODELS.get(kind) if isinstance(kind, str) else None


class _Unfit(Exception):
    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems


def _queries(views: Mapping[str, Any]) -> "dict[TableName, NamedQuery]":
    """The queries that views can read, by the name that they have in ``from``."""
    from views.sql.over_views import NamedQuery

    return {
        TableName(VIEWS_SCHEMA, name): NamedQuery(
            section["sql"], next((setting for setting in _BEYOND_QUERY if section.get(setting)), "")
        )
        for name, section in views.items()
        if isinstance(section, dict) and isinstance(section.get("sql"), str)
    }


def _as_sink(name: str, section: Any, sinks: Mapping[str, Any], views: Mapping[str, Any]) -> dict[str, Any]:
    """Raises _Unfit."""
    # Their parser takes 0.2 s to load, and few configurations have views.
    from views.sql.over_views import over_tables
    from views.sql.tables_read import tables_read

    at = f"views.{name}"
    if not isinstance(section, dict):
        raise _Unfit(f"{at}: must be a section, or a table in {{ }}")
    missing = [f"{at}.{setting}: is missing" for setting in ("sink", "sql", "key") if setting not in section]
    if missing:
        raise _Unfit(*missing)
    lender = section["sink"]
    if name in sinks:
        raise _Unfit(f"views.{name} and sinks.{name} have one name: give the view another one")
    if not isinstance(lender, str) or not isinstance(sinks.get(lender), dict):
        raise _Unfit(f"{at}.sink: there is no section [sinks.{lender}], whose store it would take")
    kind = kind_of_sink(sinks[lender])
    if kind is None:  # reported for the sink itself
        raise _Unfit
    problems = [f"{at}.{setting}: {why}" for setting, why in _OF_ITS_SINK.items() if setting in section]
    if problems:
        raise _Unfit(*problems)
    not_its_own = [setting for setting in section if setting in kind.NOT_OF_VIEWS | {"tables", "view", "lender"}]
    if not_its_own:
        raise _Unfit(*(f"{at}.{setting}: {NOT_OF_A_VIEW}" for setting in not_its_own))
    if not isinstance(section["sql"], str):
        raise _Unfit(f"{at}.sql: must be a text")
    try:
        sql = over_tables(section["sql"], _queries(views))
        names = tables_read(sql)
    except Refused as refused:
        told = [str(refusal).removeprefix("sql: ") for refusal in refused.refusals]
        raise _Unfit(*(f"{at}.sql: {text}" for text in told)) from None
    if any(name.schema == VIEWS_SCHEMA and name.name in views for name in names):
        raise _Unfit  # it isn't readable, which is reported for that view
    taken_over = {key: value for key, value in sinks[lender].items() if key not in kind.OWN | {"apply"}}
    own = {key: value for key, value in section.items() if key not in _OWN}
    view = {"name": name, "sql": sql} | {
        key: section[key] for key in ("key", "top", "retain", "tasks") if key in section
    }
    return taken_over | own | {"tables": list(map(str, names)), "view": view, "lender": lender}
