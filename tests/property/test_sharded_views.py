"""All shards of a view together are the view, and no two of them have one key: for any query that can be divided."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from cdc.model.event import JsonValue
from cdc.model.table import TableName
from tests.examples import examples
from tests.view_queries import KeptView, Question, RowWrite, histories, questions
from views.failures import Refused
from views.shard import shards
from views.sharding import sharding_of
from views.sql.reader import RetainedRows
from views.state.memory import MemoryState

Rows = Mapping[tuple[JsonValue, ...], Mapping[str, JsonValue]]


def together(of_shards: Sequence[Rows]) -> dict[tuple[JsonValue, ...], Mapping[str, JsonValue]]:
    """The rows of all shards; no key is that of two."""
    rows = {key: row for own in of_shards for key, row in own.items()}
    assert len(rows) == sum(map(len, of_shards))
    return rows


@settings(max_examples=examples(10))
@given(question=questions(exact=True), history=histories(), count=st.integers(2, 4))
def test_shards_together_are_the_view(question: Question, history: list[list[RowWrite]], count: int) -> None:
    whole = KeptView(question, MemoryState())
    try:
        sharding = sharding_of(whole.plan, count)
    except Refused:
        event("refused")
        assume(False)
        return
    event(f"{sum(by is not None for by in sharding.columns)} of {len(sharding.columns)} scans are divided")
    kept = [KeptView(question, MemoryState(), shard=shard) for shard in shards(sharding, count)]
    for step in history:
        whole.step(step)
        for shard in kept:
            shard.step(step)
        assert together([shard.rows for shard in kept]) == whole.rows
    assert together([shard.built_anew(history).rows for shard in kept]) == whole.rows
    for shard in kept:
        assert shard.built_anew(history).rows == shard.rows


@settings(max_examples=examples(8))
@given(
    question=questions(exact=False),
    history=histories(),
    times=st.lists(
        st.sampled_from(["1999-12-31T23:59", "2024-01-01T12:00", "2024-01-02T00:01"]), min_size=5, max_size=5
    ),
)
def test_rows_of_shards_age_as_those_of_the_view(
    question: Question, history: list[list[RowWrite]], times: list[str]
) -> None:
    plain = KeptView(question, MemoryState())
    assume(TableName("public", "a") in plain.plan.tables)
    retain = [RetainedRows(TableName("public", "a"), "d", 24)]
    whole = KeptView(question, MemoryState(), retain=retain)
    try:
        sharding = sharding_of(whole.plan, 2)
    except Refused:
        assume(False)
        return
    kept: list[Any] = [KeptView(question, MemoryState(), retain=retain, shard=shard) for shard in shards(sharding, 2)]
    for step, text in zip(history, times, strict=False):
        time_ms = int(datetime.fromisoformat(f"{text}+00:00").timestamp() * 1000)
        whole.step(step, time_ms=time_ms)
        for shard in kept:
            shard.step(step, time_ms=time_ms)
        assert together([shard.rows for shard in kept]) == whole.rows
