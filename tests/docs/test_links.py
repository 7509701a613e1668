"""Pages are linked, links lead somewhere, and lines can be read."""

import re
from pathlib import Path

import pytest

from tests.docs.generated import DOCS, ROOT
from tests.docs.pages import PAGES, name_of, prose, text_of

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
README_LINES_MAX = 150
LINE_MAX = 120

BANNED = ("anew", "no event tells", "stands in ", "stands for ", "stands there")
"""Riddles that the pages used to speak in."""


def links(page: Path) -> list[str]:
    return [link for link in _LINK.findall(prose(page)) if "://" not in link]


def anchors(page: Path) -> list[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    made: list[str] = []
    for heading in _HEADING.findall(prose(page)):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        before = sum(1 for other in made if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", other))
        made.append(f"{slug}-{before}" if before else slug)
    return made


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(page: Path) -> None:
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_reached_from_the_index() -> None:
    index = DOCS / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert [name_of(page) for page in DOCS.rglob("*.md") if page not in linked | {index}] == []


def test_the_index_leads_to_every_page() -> None:
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in links(DOCS / "README.md")}
    pages = {page for page in DOCS.glob("*.md") if page.name != "README.md"}
    assert [name_of(page) for page in sorted(pages - linked)] == []


def test_the_readme_is_short() -> None:
    assert len(text_of(ROOT / "README.md").splitlines()) <= README_LINES_MAX


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_line_is_too_long(page: Path) -> None:
    lines = text_of(page).splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > LINE_MAX] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_speaks_in_riddles(page: Path) -> None:
    said = re.sub(r"`[^`]+`", "", prose(page))  # not the messages that it quotes
    text = " ".join(said.split())
    assert [words for words in BANNED if re.search(rf"\b{words}", text)] == []
