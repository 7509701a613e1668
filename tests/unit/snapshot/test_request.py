"""snapshot.request"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from cdc.capture.settings import CaptureSettings
from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import Unavailable
from cdc.model.lsn import Lsn
from cdc.model.table import TableName
from cdc.pipeline_settings import Pipeline
from cdc.postgres.copy_orders import CopyAction
from cdc.postgres.settings import SourceSettings
from cdc.postgres.slot import Slot
from snapshot.request import Requested, order_copies, request_copies

PIPELINE = Pipeline(
    "shop",
    SourceSettings(dsn="host=nowhere", tables=("public.t", "public.u")),
    KafkaSettings(bootstrap_servers="nowhere:1"),
    CaptureSettings(),
)


def test_a_table_that_is_named_twice_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    slot = Slot(PIPELINE.slot, "pgoutput", "shop", 1, None, "reserved")
    asked: list[TableName] = []
    connection = SimpleNamespace(info=SimpleNamespace(dbname="shop"))
    monkeypatch.setattr("snapshot.request.connect", lambda *_, **__: nullcontext(connection))
    monkeypatch.setattr("snapshot.request.find_slot", lambda *_: slot)
    monkeypatch.setattr("snapshot.request.request_repair", lambda _, name, *__, **___: asked.append(name))
    tables = (TableName("public", "t"), TableName("public", "u"))
    assert request_copies(PIPELINE, ["public.t", "public.u", 'public."t"']) == Requested(tables, capture_runs=True)
    assert asked == list(tables)


def test_without_kafka_nobody_knows_who_reads_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> None:
        raise Unavailable("Kafka doesn't answer")

    slot = Slot(PIPELINE.slot, "pgoutput", "shop", None, Lsn(5), "reserved")
    connection = SimpleNamespace(info=SimpleNamespace(dbname="shop"))
    monkeypatch.setattr("snapshot.request.connect", lambda *_, **__: nullcontext(connection))
    monkeypatch.setattr("snapshot.request.find_slot", lambda *_: slot)
    monkeypatch.setattr("snapshot.request.read_state", silent)
    with pytest.raises(Unavailable, match="Kafka doesn't answer"):
        order_copies(PIPELINE, CopyAction.PAUSE, [])
