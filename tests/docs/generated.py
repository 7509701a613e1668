"""A table that a program writes into a page of the docs, between two comments that say which program."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def lines_between(page: Path, begin: str, end: str) -> list[str]:
    """The table's lines in the page as it is. Raises ValueError when a marker is missing."""
    text = page.read_text(encoding="utf-8")
    return text[text.index(begin) + len(begin) : text.index(end)].strip().splitlines()


def write_between(page: Path, begin: str, end: str, lines: list[str]) -> None:
    """Replace the table's lines. Raises ValueError when a marker is missing."""
    text = page.read_text(encoding="utf-8")
    first, last = text.index(begin) + len(begin), text.index(end)
    page.write_text(text[:first] + "\n\n" + "\n".join(lines) + "\n\n" + text[last:], encoding="utf-8")
