"""Which queries may be standing searches (pure): those whose answer depends only on the document.

A standing query is asked about a document when the document changes. An answer that depends on the time, on other
documents or on the place of storage would change unnoticed.

Queries by parts of words ask for all words of the index that fit. Some of them take only a limited number of these
words, or refuse more, so what they find depends on other documents.
"""

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

_OVER_QUERIES: Final[Mapping[str, frozenset[str]]] = {
    "bool": frozenset({"must", "filter", "should", "must_not"}),
    "constant_score": frozenset({"filter"}),
    "dis_max": frozenset({"queries"}),
}
"""Queries that contain other queries, and where."""

_BESIDE_QUERIES: Final = frozenset({"minimum_should_match", "adjust_pure_negative", "tie_breaker", "boost", "_name"})
"""The other members of such a query. The server also knows other names for the places above; these are refused."""

_OF_FIELDS: Final = frozenset(
    {
        *("term", "terms", "range", "exists", "prefix", "wildcard", "regexp", "fuzzy"),
        *("match", "match_phrase", "match_bool_prefix", "intervals"),
        *("geo_distance", "geo_bounding_box", "geo_polygon"),
    }
)
_NAMES_ITS_FIELDS: Final = frozenset({"multi_match", "simple_query_string"})
_WITHOUT_FIELDS: Final = frozenset({"match_all", "match_none"})

_HINTS: Final[Mapping[str, str]] = {
    "query_string": "simple_query_string can",
    "function_score": "a score decides nothing here: write the query alone",
    "boosting": "a score decides nothing here: write the query alone",
    "ids": "name the columns of the key",
    "match_phrase_prefix": "it takes 50 words of the index, whatever other documents have: match_bool_prefix can, or"
    " match_phrase and prefix in a bool",
}

_BOUNDS: Final = frozenset({"gt", "gte", "lt", "lte", "from", "to"})
_OF_THE_SERVER: Final = frozenset({"_id", "_index", "_routing", "_version", "_seq_no", "_source"})
_ALL_WORDS: Final = "constant_score"
"""The value of ``rewrite`` for a query that takes all words."""

_REWRITTEN: Final = frozenset({"prefix", "wildcard", "regexp"})
"""Queries that take all words unless their ``rewrite`` says otherwise."""

_OF_WORDS: Final = frozenset({"prefix", "wildcard", "regexp", "fuzzy"})
"""Rules of intervals that take at most 128 words."""

_PHRASE_PREFIX: Final = "phraseprefix"
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"(?:~\d*)?')
_FUZZY_WORD: Final = re.compile(r"(?<![\s\\])~")
_BY_FREQUENCY: Final = "cutoff_frequency"
_DATES: Final = frozenset({"date", "date_nanos", "date_range"})
_NOW: Final = re.compile(r"\bnow\b", re.IGNORECASE)
_DEPTH_MAX: Final = 20


def query_problems(query: Any) -> list[str]:
    """Why a query can't be a standing search, a sentence each; empty if it can. The server still has to check it."""
    return list(dict.fromkeys(_problems(query, 1)))


def _problems(query: Any, depth: int) -> Iterator[str]:
    if not isinstance(query, Mapping) or len(query) != 1:
        yield 'a query is an object with one name, as {"term": {"city": "Bern"}}'
        return
    if depth > _DEPTH_MAX:
        yield f"queries lie in each other more than {_DEPTH_MAX} deep"
        return
    ((kind, of),) = query.items()
    if kind in _OVER_QUERIES:
        yield from _inner_problems(kind, of, depth)
    elif kind in _OF_FIELDS:
        yield from _field_problems(kind, of)
    elif kind in _NAMES_ITS_FIELDS:
        yield from _named_problems(kind, of)
    elif kind not in _WITHOUT_FIELDS:
        yield f"{kind} can't stand" + (f"; {_HINTS[kind]}" if kind in _HINTS else "")


def _inner_problems(kind: str, of: Any, depth: int) -> Iterator[str]:
    if not isinstance(of, Mapping):
        yield f"{kind} is an object"
        return
    for part in sorted(map(str, of.keys() - _OVER_QUERIES[kind] - _BESIDE_QUERIES)):
        yield f"{kind} can't have {part}"
    for part in sorted(_OVER_QUERIES[kind] & of.keys()):
        inner = of[part]
        for one in inner if isinstance(inner, list) and kind != "constant_score" else [inner]:
            yield from _problems(one, depth + 1)


def _named_problems(kind: str, of: Any) -> Iterator[str]:
    fields = of.get("fields") if isinstance(of, Mapping) else None
    if not isinstance(fields, list) or not fields:
        yield f"{kind} has to name its fields"
    elif any(not isinstance(field, str) or "*" in field for field in fields):
        yield f"{kind} has to name each of its fields in full: a pattern would take in columns that are added later"
    elif wrong := sorted({field.partition("^")[0] for field in fields} & _OF_THE_SERVER):
        yield f"{kind} asks for {', '.join(wrong)}, which isn't part of a document"
    if isinstance(of, Mapping):
        if _BY_FREQUENCY in of:
            yield f"{kind} has {_BY_FREQUENCY}: how frequent a word is depends on other documents"
        yield from _word_problems(kind, kind, of)


def _field_problems(kind: str, of: Any) -> Iterator[str]:
    if not isinstance(of, Mapping):
        yield f"{kind} is an object"
        return
    fields = [of.get("field")] if kind == "exists" else list(of)
    if wrong := sorted(field for field in fields if isinstance(field, str) and field in _OF_THE_SERVER):
        yield f"{kind} asks for {', '.join(wrong)}, which isn't part of a document"
    if kind == "exists" and "*" in str(of.get("field")):
        yield "exists has to name its field in full: a pattern would take in columns that are added later"
    for field, how in of.items():
        if kind == "terms" and isinstance(how, Mapping):
            yield f"terms takes its values from another document for {field}: write them here"
        if kind == "range" and isinstance(how, Mapping):
            bounds = [str(how[bound]) for bound in sorted(_BOUNDS & how.keys())]
            if any(bound.lstrip().lower().startswith("now") for bound in bounds):
                yield f"range of {field} depends on the time: documents would begin and cease to match unchanged"
        if isinstance(how, Mapping) and _BY_FREQUENCY in how:
            yield f"{kind} of {field} has {_BY_FREQUENCY}: how frequent a word is depends on other documents"
        if kind == "intervals" and _has(how, {"script"}):
            yield f"intervals of {field} has a script, and a script may depend on anything"
        yield from _word_problems(kind, f"{kind} of {field}", how)


def _word_problems(kind: str, what: str, how: Any) -> Iterator[str]:
    """Why a query takes only some of the words that fit. ``what`` is its name in messages."""
    said = how if isinstance(how, Mapping) else {}
    rewrite = said.get("rewrite")
    if kind == "fuzzy" and rewrite != _ALL_WORDS:
        yield f'{what} takes 50 words of the index, whatever other documents have: give it "rewrite": "{_ALL_WORDS}"'
    if kind in _REWRITTEN and rewrite not in (None, _ALL_WORDS):
        yield f"{what} has a rewrite by which it takes only so many words of the index: leave rewrite out"
    if said.get("fuzziness") is not None and kind != "fuzzy" and said.get("fuzzy_rewrite") != _ALL_WORDS:
        yield (
            f"{what} has fuzziness, by which it takes 50 words of the index, whatever other documents have: give it"
            f' "fuzzy_rewrite": "{_ALL_WORDS}"'
        )
    if kind == "multi_match" and str(said.get("type")).replace("_", "").lower() == _PHRASE_PREFIX:
        yield f"{what} has type {said['type']}, by which it takes 50 words of the index: bool_prefix can stand"
    if kind == "simple_query_string" and _is_fuzzy(said):
        yield (
            f"{what} has a word with ~, by which it takes 50 words of the index: write a fuzzy query with"
            f' "rewrite": "{_ALL_WORDS}" beside it, or set flags without FUZZY where ~ is part of the word'
        )
    if kind == "intervals":
        for rule in sorted(rule for rule in _OF_WORDS if _has(how, {rule})):
            yield f"{what} has {rule}, which is refused once 128 words of the index fit: write it beside it, in a bool"


def _is_fuzzy(of: Mapping[str, Any]) -> bool:
    flags = of.get("flags", "ALL")
    if isinstance(flags, str) and not {"ALL", "FUZZY"} & set(flags.upper().split("|")):
        return False
    return _FUZZY_WORD.search(_QUOTED.sub(" ", str(of.get("query")))) is not None


def time_problems(query: Any, properties: Mapping[str, Any]) -> list[str]:
    """Why a query depends on the time: in a query of a date, the word ``now`` is the time of the request.
    ``properties`` are the fields of the index.
    """
    dates = {path for path, kind in _types(properties) if kind in _DATES}
    return list(dict.fromkeys(_time_problems(query, dates)))


def _time_problems(query: Any, dates: AbstractSet[str]) -> Iterator[str]:
    ((kind, of),) = query.items()
    asked: list[tuple[Any, Any]] = []
    if kind in _OVER_QUERIES:
        for part in sorted(_OVER_QUERIES[kind] & of.keys()):
            for one in of[part] if isinstance(of[part], list) else [of[part]]:
                yield from _time_problems(one, dates)
    elif kind in _NAMES_ITS_FIELDS:
        asked = [(field.partition("^")[0], of.get("query")) for field in of["fields"]]
    elif kind in _OF_FIELDS and kind not in ("range", "exists"):
        asked = list(of.items())
    for field, how in asked:
        if field in dates and _says_now(how):
            yield f"{kind} of {field} depends on the time: documents would begin and cease to match unchanged"


def _types(properties: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Each field and field of a field, by its path, and its type."""
    for name, how in properties.items():
        yield before + name, str(how.get("type", "object"))
        for inner in ("properties", "fields"):
            yield from _types(how.get(inner, {}), f"{before}{name}.")


def _says_now(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_says_now, value.values()))
    return any(map(_says_now, value)) if isinstance(value, list) else _NOW.search(str(value)) is not None


def _has(value: Any, names: AbstractSet[str]) -> bool:
    if isinstance(value, Mapping):
        return not names.isdisjoint(value) or any(_has(inner, names) for inner in value.values())
    return isinstance(value, list) and any(_has(inner, names) for inner in value)
