"""Views under test, each over a log of its own, and the server that runs their tasks."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from stack.stack import Endpoints
from tests.databases import Database
from tests.view_task_process import ViewTasks

if TYPE_CHECKING:
    from tests.view_jobs import ViewPipeline


@pytest.fixture
def view_pipelines(
    endpoints: Endpoints, tmp_path: Path, shared_database: Database
) -> Iterator[Callable[..., "ViewPipeline"]]:
    """Makes pipelines as ``ViewPipeline`` does, in the module's database."""
    from tests.view_jobs import ViewPipeline  # loads Spark

    with ExitStack() as opened:
        judge = opened.enter_context(psycopg.connect(shared_database.dsn, autocommit=True))
        yield lambda **more: opened.enter_context(closing(ViewPipeline(endpoints, tmp_path, judge, **more)))


@pytest.fixture(scope="session")
def view_tasks() -> Iterator[ViewTasks]:
    with closing(ViewTasks()) as server:
        yield server
