"""What is told of a pipeline's state, and what isn't."""

import json

from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from cdc.protocol.control_records import CaptureState, Gap, ProgressRecord, SnapshotPhase, TableCopy
from jobs.generations.lease import Claimed
from jobs.generations.record import Generation
from jobs.generations.status import JobState, JobStatus
from lockstep.generations import Description
from lockstep.state import GenerationState, PipelineState
from tests.builders import progress

ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")
KEY = "recognisable-key-7f3a"
CAPTURE = CaptureState(
    slot="lockstep_shop",
    owner="host:1",
    publication="lockstep_shop",
    database="shop",
    system_id="7",
    timeline=1,
    epoch=2,
    phase=SnapshotPhase.DONE,
    handoff=0x100,
    commit_lsn=0x200,
    seq=3,
    end_lsn=0x300,
    commit_time_ms=1_700_000_000_000,
    copied={ITEMS: 5},
    memberships={},
    topics={},
    gaps=(Gap(0x10, 0x20, 1_700_000_000_000, "a slot was lost"),),
    copying={ORDERS: TableCopy(since=0x180, after=(KEY,), rows=1234, keys=(f'{{"id":"{KEY}"}}',), paused=True)},
)


def test_a_copy_tells_how_far_it_is_and_no_key() -> None:
    state = PipelineState("shop", "lockstep_shop", CAPTURE, ProgressRecord(0x300, 0, {}, 2), {})
    lines = "\n".join(state.lines())
    document = json.dumps(state.to_json())
    assert "copying public.orders: 1,234 rows since 0/180, pass 1, 1 keys to be read again, paused" in lines
    assert "never came through the slot: 0/10 to 0/20" in lines
    assert "published: everything up to 0/300 of epoch 2, committed at an unknown time" in lines
    assert state.to_json()["capture"]["copying"]["public.orders"]["keys_to_read_again"] == 1
    assert KEY not in lines + document
    assert state.is_whole


def test_what_could_not_be_read_is_said_in_its_place() -> None:
    down = Unavailable("Kafka doesn't answer")
    state = PipelineState("shop", "lockstep_shop", down, down, {"cache": Unavailable("no route"), "search": []})
    assert list(state.lines()) == [
        "pipeline shop",
        "capture, by its record for slot lockstep_shop",
        "  not known: Kafka doesn't answer",
        "progress, by its newest record",
        "  not known: Kafka doesn't answer",
        "sink cache",
        "  not known: no route",
        "sink search",
        "  nothing: no job has begun to apply to it",
    ]
    assert state.to_json()["sinks"] == {"cache": {"error": "no route"}, "search": []}
    assert not state.is_whole


def test_a_capture_that_never_ran_is_no_error() -> None:
    state = PipelineState("shop", "lockstep_shop", None, None, {})
    assert "  nothing: it has never run" in state.lines()
    assert state.is_whole


def test_a_table_that_joined_is_named_beside_the_lsn_that_is_not_true_of_it_yet() -> None:
    joining = progress(0x100, joining=("shop.public.late",))
    description = Description(Generation(1, is_live=True, record=None), joining, (), JobStatus(JobState.ABSENT))
    told = GenerationState(description, Claimed(1, 1))
    assert told.to_json()["joining"] == ["shop.public.late"]
    assert "    not all of it yet: shop.public.late, which joined" in list(told.lines("cache"))
