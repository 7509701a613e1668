"""sinks.opensearch.answers"""

import pytest

from cdc.model.errors import LockstepError, Unavailable
from sinks.opensearch.answers import Verdict, failure, refusal, unreadable, verdict


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (201, None, Verdict.APPLIED),
        (404, None, Verdict.APPLIED),
        (409, "version_conflict_engine_exception", Verdict.STALE),
        (429, "rejected_execution_exception", Verdict.AGAIN),
        (429, "circuit_breaking_exception", Verdict.AGAIN),
        (503, "unavailable_shards_exception", Verdict.AGAIN),
        (503, "cluster_block_exception", Verdict.AGAIN),
        (400, "mapper_parsing_exception", Verdict.REJECTED),
        (413, "content_too_long", Verdict.REJECTED),
        (403, "cluster_block_exception", Verdict.STOP),
        (429, "cluster_block_exception", Verdict.STOP),
        (404, "index_not_found_exception", Verdict.STOP),
        (400, "invalid_index_name_exception", Verdict.STOP),
        (400, "index_closed_exception", Verdict.STOP),
        (400, "routing_missing_exception", Verdict.STOP),
        (401, "security_exception", Verdict.STOP),
    ],
)
def test_verdict(status: int, error: str | None, expected: Verdict) -> None:
    assert verdict(status, error) is expected


@pytest.mark.parametrize(
    ("status", "error", "hint"),
    [
        (401, "x", "user and password"),
        (403, "security_exception", "grant"),
        (403, "cluster_block_exception", "free space"),
        (404, "index_not_found_exception", "lockstep rebuild"),
        (400, "index_closed_exception", "open it again"),
        (400, "routing_missing_exception", "another routing"),
        (400, "validation_exception", "max_shards_per_node"),
        (413, "x", "max_content_length"),
        (418, "x", "cluster's log"),
    ],
)
def test_what_stops_a_job_says_what_to_do(status: int, error: str, hint: str) -> None:
    raised = failure(status, error)
    assert not isinstance(raised, Unavailable)
    assert hint in (raised.hint or "")


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_what_passes_by_itself_is_tried_again(status: int) -> None:
    assert isinstance(failure(status, "x"), Unavailable)


def test_a_reason_names_the_field_and_no_value() -> None:
    error = {
        "type": "mapper_parsing_exception",
        "reason": "failed to parse field [number] of type [integer] in document with id '50'. Preview of"
        " field's value: 'secret'",
        "caused_by": {"type": "illegal_argument_exception", "reason": "secret"},
    }
    assert refusal(error) == "mapper_parsing_exception: field 'number' of type integer (illegal_argument_exception)"


def test_a_document_that_cannot_be_looked_up_is_not_missing() -> None:
    assert isinstance(unreadable({"type": "no_shard_available_action_exception"}), Unavailable)
    for stopping in ("index_not_found_exception", "index_closed_exception", "routing_missing_exception"):
        assert not isinstance(unreadable({"type": stopping}), Unavailable)
        assert isinstance(unreadable({"type": stopping}), LockstepError)
