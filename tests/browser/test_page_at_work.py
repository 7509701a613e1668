"""The web page of a pipeline whose jobs are at work.

With ``LOCKSTEP_SCREENSHOTS=<directory>`` the screenshots of README and docs are left there.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from pyspark.sql import SparkSession

from stack.stack import Endpoints
from tests.browser.chromium import opened
from tests.browser.dashboard import Dashboard, captured_pipeline, seen
from tests.databases import until
from tests.pipeline import traffic

pytestmark = [pytest.mark.live, pytest.mark.busy, pytest.mark.soak]

IMAGE_BYTES_MAX = 150_000
SCREENSHOTS = os.environ.get("LOCKSTEP_SCREENSHOTS")
POINTS = 6 if SCREENSHOTS else 1
"""So many points of the last hour are waited for: one comes every ten seconds."""


_LAG = "async name => (await (await fetch(`api/sinks/${name}`)).json()).lag"


@pytest.fixture(scope="module")
def dashboard(
    endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> Iterator[Dashboard]:
    """Of a pipeline whose rows have arrived in all of its sinks."""
    prefix = "shop" if SCREENSHOTS else "page"
    name = f"{prefix}{uuid.uuid4().hex[:4]}"
    dashboard = captured_pipeline(endpoints, tmp_path_factory.mktemp("page"), name)
    try:
        dashboard.pipeline.wait_applied(dashboard.pipeline.apply(spark))
        dashboard.start()
        yield dashboard
    finally:
        dashboard.pipeline.close()


def test_a_comparison_that_somebody_has_made_is_shown(browser: Browser, dashboard: Dashboard) -> None:
    pipeline, sink = dashboard.pipeline, f"{dashboard.pipeline.name}_cache"
    verify = pipeline.start("lockstep", "verify", sink, "--config", str(pipeline.path))
    assert pipeline.wait_ended(verify) == 0, verify.output()
    with opened(browser, f"{dashboard.address}#/verify") as shown:
        row = (
            shown.page.get_by_role("region", name="Last comparison of each sink")
            .get_by_role("row")
            .filter(has_text=sink)
        )
        expect(row).to_contain_text("equal", timeout=300_000)
        assert shown.complaints == []


def test_screenshots_of_a_pipeline_at_work_are_small(browser: Browser, dashboard: Dashboard, tmp_path: Path) -> None:
    directory = Path(SCREENSHOTS or tmp_path)
    directory.mkdir(parents=True, exist_ok=True)
    name = dashboard.pipeline.name
    with traffic(dashboard.pipeline), opened(browser, dashboard.address) as first:
        until(lambda: seen(first.page)[0]["topics"]["events_per_s"])
        until(lambda: len(first.page.evaluate(_LAG, f"{name}_search")) >= POINTS)
        for image, screen, words in (
            ("dashboard", "#/", "all well"),
            ("dashboard-sink", f"#/sink/{name}_search", "Generations"),
            ("dashboard-key", f"#/key/{name}.account/42", "All is right"),
        ):
            with opened(browser, f"{dashboard.address}{screen}") as shown:
                expect(shown.page.locator("main")).to_contain_text(words, timeout=300_000)
                file = directory / f"{image}.png"
                shown.page.screenshot(path=file)
                assert file.stat().st_size < IMAGE_BYTES_MAX
