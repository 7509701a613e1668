"""The web page over real servers: what it shows is what the API says, also after a restart of its server."""

import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from stack.stack import Endpoints
from tests.browser.chromium import opened
from tests.browser.dashboard import Dashboard, captured_pipeline, seen
from tests.databases import until

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def dashboard(endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """Of a pipeline without jobs: its sinks lack everything."""
    dashboard = captured_pipeline(endpoints, tmp_path_factory.mktemp("page"), f"page{uuid.uuid4().hex[:6]}")
    try:
        dashboard.start()
        yield dashboard
    finally:
        dashboard.pipeline.close()


def test_what_the_page_shows_is_what_the_api_says(browser: Browser, dashboard: Dashboard) -> None:
    names = set(dashboard.pipeline.config.sinks)
    with opened(browser, dashboard.address) as shown:
        page = shown.page

        def behind() -> dict[str, str]:
            """What the page shows, once it is what the API says of every sink and of capture."""
            agreed = {}

            def agree() -> bool:
                state, rows = seen(page)
                for sink in state["sinks"]:
                    row = rows.get(sink["name"], [""] * 7)
                    if sink["events_behind"] is None or row[1] != sink["state"]:
                        return False
                    agreed[sink["name"]] = row[3]
                    if row[3] != f"{sink['events_behind']:,}":
                        return False
                in_kafka = rows.get("in Kafka", [""] * 7)
                return agreed.keys() == names and (in_kafka[1], in_kafka[6]) == (
                    state["capture"]["state"],
                    state["capture"]["lsn"],
                )

            until(agree)
            return agreed

        before = behind()
        dashboard.pipeline.change_accounts("seen on the page")
        until(lambda: behind() != before)
        expect(page.locator("#pipeline-name")).to_have_text(dashboard.pipeline.name)
        expect(page.locator(".problem").first).to_contain_text("no job applies to it")
        assert shown.complaints == []


@pytest.mark.soak
def test_a_restart_of_the_server_is_survived(browser: Browser, dashboard: Dashboard) -> None:
    with opened(browser, f"{dashboard.address}#/tables") as shown:
        page = shown.page
        expect(page.locator("#connection")).to_have_text("live")
        dashboard.kill()
        expect(page.locator("#lost")).to_contain_text("No connection since")
        dashboard.start()
        expect(page.locator("#connection")).to_have_text("live", timeout=300_000)
