"""The web page in states that real servers are rarely in, over a fake of the API."""

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser import example
from tests.browser.chromium import PHONE, WIDE, opened
from tests.browser.fake_api import FakeApi

SCREENS = (
    "#/",
    "#/source",
    "#/tables",
    "#/tables/public.customer",
    "#/sink/search",
    "#/copies",
    "#/key",
    "#/key/public.customer/42",
    "#/rejections",
    "#/verify",
    "#/alerts",
    "#/tail",
    "#/figures",
)

WAYS = {"light": (WIDE, "light"), "dark": (WIDE, "dark"), "phone": (PHONE, "light"), "dark phone": (PHONE, "dark")}


def show_screen(page: Page, screen: str) -> None:
    """Go to a screen, and wait until it has what it asked for."""
    page.evaluate("screen => { location.hash = screen }", screen)
    expect(page.locator("main h1")).to_be_visible()
    expect(page.locator("main").get_by_text("Asking for")).to_have_count(0)


def widths(page: Page) -> tuple[int, int]:
    """How wide the content is, and how wide the window."""
    scrolled, window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    return scrolled, window


def serious(page: Page) -> list[tuple[str, list[str]]]:
    """What axe finds that is serious or critical: the rule, and where."""
    violations = Axe().run(page).response["violations"]
    return [
        (one["id"], [node["html"][:120] for node in one["nodes"]])
        for one in violations
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("way", [pytest.param(way, marks=() if way == "phone" else pytest.mark.soak) for way in WAYS])
def test_every_screen_is_accessible_fits_and_complains_of_nothing(browser: Browser, api: FakeApi, way: str) -> None:
    size, colours = WAYS[way]
    api.show(example.stopped)
    found: dict[str, Any] = {}
    with opened(browser, api.address, size=size, colours=colours) as shown:
        for screen in SCREENS:
            show_screen(shown.page, screen)
            if wrong := serious(shown.page):
                found[screen] = wrong
            scrolled, window = widths(shown.page)
            if scrolled > window:
                found[f"{screen} is too wide"] = scrolled
        assert (found, shown.complaints) == ({}, [])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("stalled", "empty") else pytest.mark.soak) for name in example.STATES],
)
def test_every_state_of_the_pipeline_is_accessible_and_fits(browser: Browser, api: FakeApi, name: str) -> None:
    api.show(example.STATES[name])
    with opened(browser, api.address) as shown:
        assert serious(shown.page) == []
        shown.page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        expect(shown.page.locator("#menu")).to_be_visible()
        scrolled, window = widths(shown.page)
        assert (scrolled <= window, shown.complaints) == (True, [])


def test_what_is_not_well_has_its_reason_and_its_next_step(browser: Browser, api: FakeApi) -> None:
    api.show(example.stopped)
    with opened(browser, api.address) as shown:
        problem = shown.page.locator(".problem")
        expect(problem).to_contain_text("cache: the table public.customer was renamed")
        expect(problem.locator("code")).to_have_text("lockstep rebuild cache")
        expect(problem.locator(".state")).to_have_text("stopped")
        expect(shown.page.locator(".headline")).to_contain_text("cache: stopped")


@pytest.mark.soak
def test_figures_move_without_losing_the_focus_or_what_is_typed(browser: Browser, api: FakeApi) -> None:
    with opened(browser, f"{api.address}#/tables") as shown:
        page = shown.page
        page.get_by_label("Name contains").fill("stock")
        expect(page.locator("tbody tr")).to_have_count(1)
        api.show(example.stalled)
        expect(page.locator(".screens .badge.bad").first).to_be_visible()
        expect(page.get_by_label("Name contains")).to_be_focused()
        expect(page.get_by_label("Name contains")).to_have_value("stock")


@pytest.mark.soak
def test_a_lost_connection_is_told_with_since_when_and_found_again(browser: Browser, api: FakeApi) -> None:
    with opened(browser, api.address) as shown:
        page = shown.page
        expect(page.locator("#connection")).to_have_text("live")
        api.lose()
        expect(page.locator("#lost")).to_contain_text("No connection since")
        expect(page.locator("#connection")).to_have_text("not connected")
        assert page.locator("main").evaluate("main => getComputedStyle(main).filter") == "grayscale(1)"
        api.find()
        api.show(example.stalled)
        expect(page.locator("#connection")).to_have_text("live", timeout=300_000)
        expect(page.locator("#lost")).to_be_hidden()
        expect(page.locator(".problem")).to_contain_text("search")


@pytest.mark.soak
def test_a_command_is_copied_as_a_shell_takes_it(browser: Browser, api: FakeApi) -> None:
    api.documents["rejections"]["reasons"][0]["reason"] = "it's too long"
    with opened(browser, f"{api.address}#/rejections") as shown:
        retry = shown.page.locator(".commands").first.locator("pre").first
        expect(retry).to_have_text(r"lockstep rejections retry search --reason='it'\''s too long'")
        copy = shown.page.locator(".commands button").first
        copy.click()
        expect(copy).to_have_text("Copied")


@pytest.mark.soak
def test_the_keyboard_reaches_every_screen_and_skips_the_menu(browser: Browser, api: FakeApi) -> None:
    with opened(browser, api.address) as shown:
        page = shown.page
        page.keyboard.press("Tab")
        expect(page.locator("#skip")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        page.locator("#skip").focus()
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.getAttribute('href') ?? document.activeElement.id"))
        drawn = {"#/source", "#/tables", "#/sink/cache"}
        assert {"theme", "#/", "#/key", "#/verify", "#/figures"} | drawn <= reached
        page.locator(".screens a[href='#/verify']").focus()
        page.keyboard.press("Enter")
        expect(page.locator("main h1")).to_have_text("Verify")
        expect(page.locator("main")).to_be_focused()


def test_events_are_followed_live(browser: Browser, api: FakeApi) -> None:
    with opened(browser, f"{api.address}#/tail") as shown:
        page = shown.page
        page.get_by_role("button", name="Tail", exact=True).click()
        expect(page.locator("tbody tr").first).to_contain_text("public.customer")
        page.get_by_role("button", name="Stop").click()


def test_what_the_database_holds_is_text_and_never_a_part_of_the_page(browser: Browser, api: FakeApi) -> None:
    nasty = "<img src=x onerror=alert(1)>"
    api.documents["tables"]["tables"][0]["table"] = nasty
    with opened(browser, f"{api.address}#/tables") as shown:
        expect(shown.page.get_by_role("rowheader").first).to_have_text(nasty)
        assert (shown.page.locator("main img").count(), shown.complaints) == (0, [])
