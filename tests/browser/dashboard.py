"""A pipeline on real servers with the server of its page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from stack import ports
from stack.stack import Endpoints
from tests.pipeline import Pipeline, Process, wait_until

ROWS = 500

_SHOWN = """
async () => {
  const state = await (await fetch('api/pipeline')).json();
  const rows = [...document.querySelectorAll('main tbody tr')].map(row => [...row.cells].map(cell => cell.innerText));
  return {state, rows: Object.fromEntries(rows.map(row => [row[0], row]))};
}
"""


@dataclass
class Dashboard:
    """The server of a pipeline's page, at the same address after a restart."""

    pipeline: Pipeline
    port: int
    process: Process | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        """Returns once it listens."""
        process = self.pipeline.start("lockstep", "dashboard", "--config", str(self.pipeline.path))

        def listens() -> bool:
            assert process.poll() is None, process.output()
            return not ports.is_free(self.port)

        wait_until(listens, what="the dashboard listens")
        self.process = process

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


def captured_pipeline(endpoints: Endpoints, directory: Path, name: str) -> Dashboard:
    """A pipeline with three sinks and some rows, that a capture of its own streams. No server of its page yet."""
    pipeline = Pipeline(endpoints, directory, name, sinks=True)
    dashboard = Dashboard(pipeline, ports.pick())
    with pipeline.path.open("a") as file:
        file.write(f'[dashboard]\nlisten = "127.0.0.1:{dashboard.port}"\n')
    with pipeline.sql() as connection:
        connection.execute(
            f"insert into {name}.account (id, owner) select i, 'owner ' || i from generate_series(1, {ROWS}) i"
        )
    pipeline.wait_streaming(pipeline.start_capture())
    return dashboard


def seen(page: Page) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The newest state of the API, and at the same moment the rows of the shown table by their first cells."""
    both = page.evaluate(_SHOWN)
    return both["state"], both["rows"]
