"""The pages of the documentation, and what a test needs to find in them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.docs.generated import DOCS, ROOT

PAGES: Final = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "tests" / "README.md",
    *sorted(DOCS.rglob("*.md")),
)

_FENCE: Final = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SPAN: Final = re.compile(r"`([^`\n]+)`")
_COMMENT: Final = re.compile(r"\s+#.*$")


def name_of(page: Path) -> str:
    """The page's path in the repository."""
    return str(page.relative_to(ROOT))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return _FENCE.sub("", text_of(page))


def spans(page: Path) -> list[str]:
    """What is between single backquotes, outside of code blocks."""
    return _SPAN.findall(prose(page))


def blocks(page: Path, language: str) -> list[str]:
    """The contents of the page's code blocks of one language, without their indentation."""
    return [
        "\n".join(line.removeprefix(indent) for line in body.splitlines())
        for indent, language_of_block, body in _FENCE.findall(text_of(page))
        if language_of_block == language
    ]


def commands(page: Path) -> Iterator[str]:
    """Lines of shell, from code blocks and from between backquotes, without comments."""
    for block in blocks(page, "sh"):
        yield from (_COMMENT.sub("", line).strip() for line in block.splitlines() if not line.startswith("#"))
    yield from spans(page)


def tables(page: Path) -> Iterator[list[dict[str, str]]]:
    """The page's tables: for each its rows, cells by heading."""
    rows: list[list[str]] = []
    for line in [*prose(page).splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
        elif rows:
            head = [cell.strip("| ") for cell in rows[0]]
            yield [dict(zip(head, row, strict=False)) for row in rows[2:]]
            rows = []
