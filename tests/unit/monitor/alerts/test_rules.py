"""monitor.alerts.rules, where a store doesn't answer."""

import contextlib
import socket

import pytest

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from monitor.alerts.rules import RuleCollector
from monitor.alerts.settings import RuleSettings, RuleTarget
from sinks.warehouse.settings import WarehouseSettings
from tests.databases import until


def test_a_store_that_is_silent_keeps_no_other_rule_from_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.alerts.rules._ANSWER_S", 1e6)
    rule = RuleSettings.model_validate({"of": "hits", "where": "n > 1", "severity": "warning", "says": "many"})
    with socket.create_server(("127.0.0.1", 0)) as silent, contextlib.ExitStack() as connections:
        silent.setblocking(False)
        url = f"postgresql+psycopg://nobody@127.0.0.1:{silent.getsockname()[1]}/dwh"
        address = WarehouseSettings.model_validate({"url": url})
        target = RuleTarget("hits", address, TableName("views", "hits"))
        with RuleCollector({"first": (rule, target), "second": (rule, target)}) as rules:
            for _ in range(2):  # neither is answered before both are there
                connections.enter_context(until(lambda: _accepted(silent)))
            assert dict(rules.latest()) == {"first": None, "second": None}
            connections.close()
            silent.close()
            until(lambda: all(isinstance(answer, LockstepError) for answer in rules.latest().values()))


def _accepted(server: socket.socket) -> socket.socket | None:
    with contextlib.suppress(BlockingIOError):
        return server.accept()[0]
    return None
