"""Open rejections are counted from the dead-letter topic, and unreadable ones aren't ignored."""

import uuid

import orjson
import pytest

from cdc.capture.settings import CaptureSettings
from cdc.kafka.topic_admin import TopicAdmin, control_topic_plans
from cdc.model.event import Position
from cdc.pipeline_settings import Pipeline
from cdc.postgres.settings import SourceSettings
from jobs.dead_letters.record import dead_letter_key, dead_letter_value
from jobs.dead_letters.topic import DeadLetterTopic
from jobs.executor.result import RejectedEvent
from monitor.open_rejections import OpenRejections
from stack.stack import Endpoints
from tests.events import kafka_settings

pytestmark = pytest.mark.live

TOPIC = "shop.public.orders"


def _record(number: int, **changes: object) -> tuple[bytes, bytes]:
    """A dead letter of a row, with other facts than its writer's."""
    tag, key = f"{number:028x}", b'{"id":%d}' % number
    value = dead_letter_value(
        "search", 1, RejectedEvent(Position(TOPIC, 0, number), key, b"{}", tag, "no"), rejected_at_ms=1
    )
    return dead_letter_key("search", 1, TOPIC, key, tag), orjson.dumps(orjson.loads(value) | changes)


def test_dead_letters_of_another_version_are_reported_beside_the_open_ones(endpoints: Endpoints) -> None:
    kafka = kafka_settings(endpoints.kafka_bootstrap)
    source = SourceSettings(dsn=endpoints.source_dsn, tables=("public.orders",))
    pipeline = Pipeline(f"t{uuid.uuid4().hex[:12]}", source, kafka, CaptureSettings())
    admin = TopicAdmin(kafka.client())
    admin.create(control_topic_plans(pipeline.name, kafka.topics))
    topic = DeadLetterTopic(kafka.client(), pipeline.name)
    rejections = OpenRejections(pipeline, admin)
    newer, without = _record(2, format=2), _record(3, format=None)
    topic.send([_record(1), newer, without])
    assert (dict(rejections.counts()), rejections.unreadable) == ({("search", 1): 1}, 2)
    topic.send([(newer[0], None), (without[0], None)])
    assert (dict(rejections.counts()), rejections.unreadable) == ({("search", 1): 1}, 0)
