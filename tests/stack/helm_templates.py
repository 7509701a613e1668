"""Renders the chart of ``deploy/helm`` as Helm does, as far as its templates go: what else they use is an error."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

_ACTION: Final = re.compile(r"(\s*)\{\{-\s*(.*?)\s*\}\}|\{\{\s*(.*?)\s*\}\}")
_WORD: Final = re.compile(r'"[^"]*"|\(|\)|\||[^\s()|]+')


class Refused(Exception):
    """What ``fail`` or ``required`` says."""


class Chart:
    """The templates of a chart, and the values that they have by default."""

    def __init__(self, directory: Path) -> None:
        self._values = yaml.safe_load((directory / "values.yaml").read_text())
        self._blocks: dict[str, str] = {}
        self._templates = {path.name: path.read_text() for path in sorted((directory / "templates").glob("*.yaml"))}
        parts = (directory / "templates" / "_parts.tpl").read_text()
        for block in re.split(r"^\{\{- define ", parts, flags=re.MULTILINE)[1:]:
            name, _, body = block.partition(" }}")
            self._blocks[json.loads(name)] = body[: body.rindex("\n{{- end }}")]

    def render(self, changes: Mapping[str, Any], *, release: str) -> list[dict[str, Any]]:
        """The documents for these values. Raises Refused."""
        context = {"Values": _merged(self._values, changes), "Release": {"Name": release}}
        texts = [self._text(template, context) for template in self._templates.values()]
        documents = [document for text in texts for document in yaml.safe_load_all(text)]
        return [document for document in documents if document is not None]

    def _text(self, template: str, context: Mapping[str, Any]) -> str:
        out: list[str] = []
        shown = [True]
        at = 0
        for match in _ACTION.finditer(template):
            space, trimming, plain = match.groups()
            action = trimming if trimming is not None else plain
            before = template[at : match.start()] + ("" if trimming is not None or not space else space)
            at = match.end()
            if shown[-1]:
                out.append(before)
            if action == "end":
                shown.pop()
            elif action.startswith("if "):
                shown.append(shown[-1] and bool(self._value(action[3:], context)))
            elif shown[-1]:
                out.append(str(self._value(action, context)))
        assert shown == [True]
        return "".join(out) + template[at:]

    def _value(self, action: str, context: Mapping[str, Any]) -> Any:
        words = iter(_WORD.findall(action))
        return self._pipeline(words, context)

    def _pipeline(self, words: Iterator[str], context: Mapping[str, Any]) -> Any:
        calls: list[list[Any]] = [[]]
        for word in words:
            if word == ")":
                break
            if word == "|":
                calls.append([])
            else:
                calls[-1].append(self._pipeline(words, context) if word == "(" else self._word(word, context))
        value: Any = None
        for index, (first, *rest) in enumerate(calls):
            arguments = rest if index == 0 else [*rest, value]
            value = first(*arguments) if callable(first) else first
        return value

    def _word(self, word: str, context: Mapping[str, Any]) -> Any:
        if word.startswith('"'):
            return json.loads(word)
        if word.isdecimal():
            return int(word)
        if word == ".":
            return context
        if word.startswith("."):
            value: Any = context
            for name in word[1:].split("."):
                value = value[name]
            return value
        if word == "include":
            return lambda name, inner: self._text(self._blocks[name], inner)
        return _FUNCTIONS[word]


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    unknown = changes.keys() - values.keys()
    assert not unknown, f"no such values: {unknown}"
    merged = dict(values)
    for name, change in changes.items():
        merged[name] = _merged(values[name], change) if isinstance(change, Mapping) else change
    return merged


def _required(message: str, value: Any) -> Any:
    if not value:
        raise Refused(message)
    return value


def _fail(message: str) -> None:
    raise Refused(message)


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "and": lambda *values: all(values),
    "fail": _fail,
    "gt": lambda left, right: left > right,
    "int": int,
    "nindent": lambda width, text: "\n" + "\n".join(" " * width + line for line in text.splitlines()),
    "not": lambda value: not value,
    "printf": lambda text, *values: text % values,
    "quote": json.dumps,
    "required": _required,
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "toYaml": lambda value: yaml.safe_dump(value).rstrip("\n"),
}
