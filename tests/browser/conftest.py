"""A browser for the tests of one file, and a fake of the API for each of them."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser.chromium import chromium
from tests.browser.fake_api import FakeApi, fake_api


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as served:
        yield served
