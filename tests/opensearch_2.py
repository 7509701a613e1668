"""The oldest supported OpenSearch, as a small node with tight settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from stack import java, opensearch, process
from tests.databases import until
from tests.services import temporary_directory

_TIGHT = {"http.max_content_length": "1mb", "indexing_pressure.memory.limit": "700kb"}


@contextmanager
def opensearch_2() -> Iterator[str]:
    chosen_java = java.for_kafka()
    patch = pytest.MonkeyPatch()
    # With a Java that passes for an older one, version 2 starts.
    patch.setattr(
        java, "for_opensearch", lambda: replace(chosen_java, major=min(chosen_java.major, java.JAVA_OPENSEARCH_3 - 1))
    )
    server = opensearch.OpenSearch(light=True)
    with temporary_directory() as directory:
        chosen = server.ports({}, ())
        launch = server.prepare(chosen, directory)
        patch.undo()
        settings = Path(launch.directory) / "conf" / "opensearch.yml"
        settings.write_text(settings.read_text() + "".join(f"{name}: {value}\n" for name, value in _TIGHT.items()))
        running, tail = process.spawn(launch)
        assert running is not None, tail.last(20)
        try:
            until(lambda: server.is_ready(chosen, tail) or not process.is_alive(running))
            assert process.is_alive(running), tail.last(20)
            yield server.address(server.actual_ports(chosen, tail))
        finally:
            process.end(running, stop_signal=server.stop_signal, grace_seconds=20)
