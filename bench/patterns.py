"""How fast a stream query takes events in whose pattern each event may begin: with few events of each key, and many.

`lockstep apply --once` runs three times. The first run has a few events, and is taken from the others: what is left is
theirs. Each event is one of a login, and three that failed within five minutes are a match.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson
import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.figures import Figure
from bench.rig import WAREHOUSE, Pipeline, Rig, Say, sink_name
from bench.sizes import Sizes
from bench.usage import cpu_seconds
from cdc.model.errors import LockstepError

PHASE = "patterns"

EVENTS_PER_KEY: Final = (1, 100)

_FIRST_EVENTS = 100
_PARTITIONS = 4
_BEGINS_S = 1_790_000_000
_GAP_S = 60.0
"""Between two events of a key."""

_ONCE_S_MAX = 900.0
_LOOK_S = 0.2
_QUERY = "guessed"
_SECTIONS = """
[streams.logins]
topic = "{topic}"
columns = {{ id = "text", user_id = "int8", at = "timestamptz", ok = "bool" }}
time = "at"
late = "10 minutes"
id = ["id"]
[stream_queries.{query}]
sink = "{sink}"
[stream_queries.{query}.pattern]
per = ["user_id"]
within = "5 minutes"
steps = [{{ name = "failed", stream = "logins", where = "not ok", times = 3 }}]
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """One run to the end of the topic. Seconds of the clock, and of the processor: driver, JVM and workers."""

    events: int
    seconds: float
    cpu_s: float


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Returns figures and details. Raises LockstepError when a run fails."""
    rig.up("postgres", "kafka", "warehouse")
    figures: list[Figure] = []
    for per_key in EVENTS_PER_KEY:
        with rig.pipeline(f"pattern{per_key}", sinks=[WAREHOUSE]) as pipeline:
            stream = _Stream(pipeline)
            first, whole = (
                stream.take(rig, events, keys=max(1, events // per_key))
                for events in (_FIRST_EVENTS, sizes.pattern_events)
            )
            if per_key > 1 and not stream.matches():
                raise LockstepError(f"nothing was found in {whole.events:,} events")
        figures += figures_of(first, whole, per_key=per_key)
        say(f"{per_key} events of each key: {figures[-2].value:,.0f} events/s, {figures[-1].value:.0f} us an event")
    return figures, {"events": sizes.pattern_events}


def figures_of(first: Taken, whole: Taken, *, per_key: int) -> list[Figure]:
    """What the second run took longer than the first is its events'. Pure."""
    seconds, cpu_s = whole.seconds - first.seconds, whole.cpu_s - first.cpu_s
    if seconds <= 0:
        raise LockstepError(f"{whole.events:,} events took no longer than {first.events}: there are too few")
    name = f"{per_key} event{'s' if per_key > 1 else ''} of each key"
    return [
        Figure(phase=PHASE, name=name, value=whole.events / seconds, unit="events/s"),
        Figure(phase=PHASE, name=f"{name}: processor time", value=1e6 * cpu_s / whole.events, unit="us/event"),
    ]


class _Stream:
    """A topic of logins, and the query over it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._client: dict[str, Any] = dict(pipeline.client)
        self._warehouse = pipeline.endpoints.warehouse_dsn
        self._schema = pipeline.name
        self._topic = f"{pipeline.name}.logins"
        self._sent = 0
        config = pipeline.directory / f"{pipeline.name}.toml"
        self._path = config.with_name(f"{pipeline.name}-streams.toml")
        sections = _SECTIONS.format(topic=self._topic, query=_QUERY, sink=sink_name(pipeline.name, WAREHOUSE))
        self._path.write_text(config.read_text(encoding="utf-8") + sections, encoding="utf-8")
        # The events' times are of another day, and Kafka deletes by them.
        topic = NewTopic(self._topic, _PARTITIONS, 1, config={"retention.ms": "-1"})
        admin = AdminClient(self._client)  # it answers nothing any more once nobody has it
        for created in admin.create_topics([topic]).values():
            created.result(30)

    def take(self, rig: Rig, events: int, *, keys: int) -> Taken:
        """Send so many events, and have the query take them."""
        producer = Producer({**self._client, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
        for key, value in self._events(events, keys):
            producer.produce(self._topic, value, key)
            producer.poll(0)
        producer.flush(60)
        began = time.monotonic()
        child = rig.start("apply", "apply", _QUERY, "--once", "--config", str(self._path))
        cpu_s = 0.0
        while child.is_alive:
            if time.monotonic() - began > _ONCE_S_MAX:
                raise LockstepError(f"the query didn't take {events:,} events in {_ONCE_S_MAX:.0f} s")
            cpu_s = max(cpu_s, cpu_seconds(child.process.pid))
            time.sleep(_LOOK_S)
        seconds = time.monotonic() - began
        rig.stop(child)
        return Taken(events, seconds, cpu_s)

    def _events(self, events: int, keys: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys take turns; every second event of a key has failed."""
        for number in range(self._sent, self._sent + events):
            user_id, turn = number % keys, number // keys
            at_s = _BEGINS_S + number * _GAP_S / keys
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))
            event = {"id": f"e{number}", "user_id": user_id, "at": at, "ok": turn % 2 == 1}
            yield str(user_id).encode(), orjson.dumps(event)
        self._sent += events

    def matches(self) -> int:
        """How many there are in the warehouse."""
        with psycopg.connect(self._warehouse) as connection:
            (count,) = connection.execute(f"select count(*) from {self._schema}.{_QUERY}".encode()).fetchone() or (0,)
        return int(count)
