"""What `lockstep generations` says of a sink."""

import uuid
from pathlib import Path

import orjson
import pytest

from lockstep.cli.main import exit_code
from monitor.verification import Verification, VerifyOutcome, save_verification
from sinks.contract import Progress
from sinks.redis.settings import RedisSettings
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.builders import column, table
from tests.events import EPOCH, Log, Put, kafka_settings

pytestmark = pytest.mark.live

ORDERS = table(column("id", "int8"), column("note"))


@pytest.mark.parametrize(("verified_in", "shown"), [(EPOCH - 1, None), (EPOCH, "0/64")])
def test_up_to_where_a_sink_was_verified_is_told_of_the_epoch_of_capture_alone(
    verified_in: int, shown: str | None, endpoints: Endpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a restore of the source, the sink's own progress has the earlier epoch until its job has read on."""
    name = f"gens{uuid.uuid4().hex[:8]}"
    sink = f"{name}_cache"
    log = Log(kafka_settings(endpoints.kafka_bootstrap), name, [ORDERS])
    opened = open_sink(sink, RedisSettings.model_validate({"url": endpoints.redis_url}), 1)
    path = tmp_path / "lockstep.toml"
    path.write_text(
        f'[pipeline]\nname = "{name}"\n[source]\ndsn = "{endpoints.source_dsn}"\n'
        f'tables = ["public.orders"]\n[kafka]\nbootstrap_servers = "{endpoints.kafka_bootstrap}"\n'
        f'[sinks.{sink}]\ntype = "redis"\nurl = "{endpoints.redis_url}"\n'
    )
    try:
        log.commit([Put(ORDERS, {"id": 1, "note": "n"})])
        opened.sink.prepare([ORDERS])
        opened.sink.claim()
        opened.generations.save_progress(Progress({}, 100, 1, 1, {}, epoch=EPOCH - 1))
        verification = Verification(1, 2, VerifyOutcome.EQUAL, through_lsn=100, through_ms=1, through_epoch=verified_in)
        save_verification(opened.records, 1, verification)
        capsys.readouterr()
        assert exit_code(["generations", sink, "--json", "--config", str(path)]) == 0
        (generation,) = orjson.loads(capsys.readouterr().out)
        assert generation["verified"]["verified_through"] == shown
    finally:
        opened.sink.close()
        log.close()
