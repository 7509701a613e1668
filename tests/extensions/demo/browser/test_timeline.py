"""The demo's live timeline over real servers: what is done on it, and what it shows, compared with the source's query.

With ``LOCKSTEP_SCREENSHOTS=<directory>`` the screenshot of the docs is left there.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect
from pyspark.sql import SparkSession

from cdc.postgres.slot import emit_heartbeat
from extensions.demo import timeline
from lockstep.apply import apply_sinks
from lockstep.dashboard_settings import TOKEN_VARIABLE
from monitor.waits import Waits
from stack import ports
from stack.stack import Endpoints
from tests.browser.chromium import PHONE, WIDE, opened
from tests.captured import Captured
from tests.databases import Database, until
from tests.pipeline import ROOT
from tests.spark_here import Job

pytestmark = [pytest.mark.live, pytest.mark.busy]

REDIS_DATABASE = 12
"""The view's keys have the name that the demo gives them, so they have a database of the server for themselves."""

BUILD_S = 300.0
PATIENCE_S = 300.0
PATIENCE_MS = 1000 * PATIENCE_S
IMAGE_BYTES_MAX = 150_000
SCREENSHOTS = os.environ.get("LOCKSTEP_SCREENSHOTS")

OF_A_USER = (
    f"select name, body from ({timeline.QUERY}) t where follower_id = %s order by created_at desc, tweet_id desc"
    " limit 100"
)
_SHOWN = """
[...document.querySelectorAll('#tweets li')].map(
  line => [...line.querySelectorAll('strong, .body')].map(part => part.textContent)
)
"""

_LOOKS_LATER = """
import sys, time
from pathlib import Path
from lockstep.dashboard.sampler import Sampler
from extensions.demo.page import main

file, look = Path(sys.argv[1]), Sampler._look

def look_later(sampler):
    while not file.exists():
        time.sleep(0.05)
    return look(sampler)

Sampler._look = look_later
sys.exit(main(sys.argv[2:]))
"""
"""The page's server, which looks at the pipeline only once a file is there."""


class Timeline:
    """The demo's network, captured, with its view in Redis, and the server of its page at one address."""

    def __init__(self, endpoints: Endpoints, directory: Path) -> None:
        redis_url = urlsplit(endpoints.redis_url)._replace(path=f"/{REDIS_DATABASE}").geturl()
        self.cache = redis.Redis.from_url(redis_url)
        self.cache.flushdb()
        self.source = Database(endpoints.source_dsn)
        timeline.create_timeline(self.source.connection, random.Random(4))
        self.port = ports.pick()
        sections = (
            f"[sinks.cache]\ntype = 'redis'\nurl = '{redis_url}'\napply = false\n"
            f"[spark]\nview_directory = '{directory}/views'\n"
            f"[dashboard]\nlisten = '127.0.0.1:{self.port}'\n{timeline.SECTION}"
        )
        tables = list(map(str, timeline.TABLES))
        self.captured = Captured(self.source, endpoints.kafka_bootstrap, directory, tables, sections=sections)
        self.job: Job | None = None
        self._log = directory / "page.log"
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}{timeline.ADDRESS}"

    def serve(self, *, look_once: Path | None = None) -> None:
        """Returns once it listens. With a file it looks at the pipeline only once that is there."""
        program = ["-m", "extensions.demo.page"] if look_once is None else ["-c", _LOOKS_LATER, str(look_once)]
        environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
        with self._log.open("ab") as log:
            command = [sys.executable, *program, "--config", str(self.captured.path)]
            self._server = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment)

        def listens() -> bool:
            assert self._server is not None
            assert self._server.poll() is None, self._log.read_text()
            return not ports.is_free(self.port)

        until(listens, seconds=PATIENCE_S)

    def wait(self) -> None:
        """Until the view is built."""
        config = self.captured.config
        target = emit_heartbeat(self.source.connection)
        deadline = time.monotonic() + BUILD_S
        with Waits(config.as_pipeline(), {timeline.VIEW: config.sinks[timeline.VIEW]}) as waits:
            while not (waited := waits.wait(target, timeout_s=2.0)).is_reached:
                assert self.job is not None
                assert self.job.poll() is None, self.job.output()
                assert time.monotonic() < deadline, (waited.late, self.job.output()[-5000:])

    def kill(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()

    def of(self, user: int) -> list[list[str]]:
        """What the source's query says that this user sees."""
        return [list(row) for row in self.source.connection.execute(OF_A_USER, (user,))]

    def name(self, user: int) -> str:
        return str(self.source.value("select name from users where id = %s", user))

    def rows(self, query: str, *parameters: object) -> list[int]:
        return [row[0] for row in self.source.connection.execute(query.encode(), parameters)]

    def close(self) -> None:
        self.kill()
        self.captured.stop()
        self.cache.flushdb()
        self.cache.close()
        self.source.drop()


@pytest.fixture(scope="module")
def network(endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Timeline]:
    made = Timeline(endpoints, tmp_path_factory.mktemp("timeline"))
    try:
        made.captured.start()
        with Job(spark, partial(apply_sinks, made.captured.config, sinks=[timeline.VIEW], once=False)) as made.job:
            made.serve()
            made.wait()
            yield made
    finally:
        made.close()


def shown(page: Page) -> list[list[str]]:
    return [line for line in page.evaluate(_SHOWN) if line]


def expect_equal(page: Page, network: Timeline, user: int) -> None:
    """Until the screen is what the source's query says."""

    def is_equal() -> bool:
        assert network.job is not None
        assert network.job.poll() is None, network.job.output()
        return shown(page) == network.of(user)

    until(is_equal, seconds=PATIENCE_S)


def choose(page: Page, network: Timeline, user: int) -> None:
    page.get_by_label("You are").select_option(network.name(user))
    expect_equal(page, network, user)


def expect_measured(page: Page, words: str) -> None:
    """How long it took is said once."""
    line = page.locator("#changes li").filter(has_text=words)
    expect(line).to_have_count(1, timeout=PATIENCE_MS)
    seconds, unit = line.locator(".took").inner_text().split()
    assert unit == "s"
    assert 0 <= float(seconds) < PATIENCE_S


def test_each_of_the_four_actions_is_shown_as_the_source_has_it(browser: Browser, network: Timeline) -> None:
    user = 2
    with opened(browser, network.address) as tab:
        page = tab.page
        choose(page, network, user)

        page.get_by_label("Your tweet").fill("a tweet from the page")
        page.get_by_role("button", name="Tweet", exact=True).click()
        expect_measured(page, "Your tweet")
        assert [network.name(user), "a tweet from the page"] in shown(page)
        expect_equal(page, network, user)
        expect(page.get_by_label("Your tweet")).to_have_value("")

        page.get_by_role("button", name="Delete: a tweet from the page").click()
        expect_measured(page, "A tweet of yours deleted")
        assert [network.name(user), "a tweet from the page"] not in shown(page)
        expect_equal(page, network, user)

        (stranger,) = network.rows(
            "select id from users where id not in (select followee_id from follows where follower_id = %s)"
            " order by id limit 1",
            user,
        )
        name = network.name(stranger)
        page.get_by_role("button", name=f"Follow {name}").click()
        expect_measured(page, f"{name} followed")
        assert name in {author for author, _ in shown(page)}
        expect_equal(page, network, user)

        page.get_by_role("button", name=f"Unfollow {name}").click()
        expect_measured(page, f"{name} unfollowed")
        assert name not in {author for author, _ in shown(page)}
        expect_equal(page, network, user)
        assert tab.complaints == []


@pytest.mark.soak
def test_the_keyboard_alone_is_enough(browser: Browser, network: Timeline) -> None:
    user = 5
    with opened(browser, network.address) as tab:
        page = tab.page
        choose(page, network, user)
        page.get_by_label("You are").focus()
        page.keyboard.press("Tab")
        expect(page.get_by_label("Your tweet")).to_be_focused()
        page.keyboard.type("typed")
        page.keyboard.press("Enter")
        expect_measured(page, "Your tweet")
        expect(page.get_by_label("Your tweet")).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name="Delete: typed")).to_be_focused()
        page.keyboard.press("Enter")
        expect_measured(page, "A tweet of yours deleted")
        expect_equal(page, network, user)


@pytest.mark.parametrize(
    ("size", "colours"),
    [(WIDE, "light"), (WIDE, "dark"), (PHONE, "light"), (PHONE, "dark")],
    ids=["light", "dark", "phone", "dark phone"],
)
@pytest.mark.soak
def test_it_is_accessible_and_fits(browser: Browser, network: Timeline, size: tuple[int, int], colours: str) -> None:
    with opened(browser, network.address, size=size, colours=colours) as tab:
        expect_equal(tab.page, network, timeline.VISITOR)
        violations = Axe().run(tab.page).response["violations"]
        serious = [(one["id"], one["nodes"]) for one in violations if one["impact"] in ("serious", "critical")]
        scrolled, window = tab.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert (serious, scrolled <= window, tab.complaints) == ([], True, [])


@pytest.mark.soak
def test_the_screenshot_is_small(browser: Browser, network: Timeline, tmp_path: Path) -> None:
    user = 7
    friend = network.rows("select followee_id from follows where follower_id = 7 and followee_id <> 7")[0]
    directory = Path(SCREENSHOTS or tmp_path)
    directory.mkdir(parents=True, exist_ok=True)
    with opened(browser, network.address) as tab:
        page = tab.page
        choose(page, network, user)
        timeline.send_tweet(network.source.connection, friend, "Good morning! Did anybody see my kettle?")
        expect_equal(page, network, user)
        page.get_by_label("Your tweet").fill("It's on the oak shelf.")
        page.get_by_label("Your tweet").press("Enter")
        expect_measured(page, "Your tweet")
        expect_equal(page, network, user)
        file = directory / "timeline.png"
        page.screenshot(path=file)
        assert file.stat().st_size < IMAGE_BYTES_MAX
