"""Debian's Chromium without a window, and pages in it that tell what went wrong inside of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from playwright.sync_api import Browser, Page, sync_playwright

from tests.programs import needs

_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

WIDE, PHONE = (1280, 900), (320, 720)


@dataclass
class Opened:
    """A page, and what it complained about: errors in its console, and what the content security policy refused."""

    page: Page
    complaints: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own. Skips the test where Chromium isn't installed."""
    program = needs("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser,
    address: str,
    *,
    size: tuple[int, int] = WIDE,
    colours: Literal["light", "dark"] = "light",
) -> Iterator[Opened]:
    """The page at an address, in a window of this size, once it shows a state."""
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=colours,
        locale="en-GB",
        bypass_csp=False,
        reduced_motion="reduce",
    )
    page = context.new_page()
    shown = Opened(page)
    page.on("console", lambda message: _keep(shown, message))
    page.on("pageerror", lambda error: shown.complaints.append(str(error)))
    try:
        page.goto(address)
        page.wait_for_selector("main h1")
        yield shown
    finally:
        context.close()


def _keep(shown: Opened, message: Any) -> None:
    if message.type in ("error", "warning"):
        shown.complaints.append(message.text)
