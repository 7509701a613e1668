"""The messages of repair requests, and how capture gathers them."""

import re

import orjson
import pytest

from cdc.model.table import Table, TableName
from cdc.postgres.repair_messages import Key, RepairRequest, UnreadableRequest
from cdc.stream.repair_requests import RepairRequests
from tests.builders import ORDERS, column, table
from tests.history import published

SLOT = "lockstep_shop"


def request(*keys: Key, slot: str = SLOT, name: TableName = ORDERS) -> bytes:
    return RepairRequest(slot, name, keys).to_bytes()


@pytest.mark.parametrize("name", ["format", "slot", "schema", "table", "keys"])
@pytest.mark.parametrize("value", [False, 1.5, {}, [1]])
def test_a_field_of_another_kind_is_unreadable(name: str, value: object) -> None:
    with pytest.raises(UnreadableRequest):
        RepairRequest.from_bytes(orjson.dumps(orjson.loads(request({"id": 1})) | {name: value}))


def test_a_whole_table_is_asked_for_by_saying_so() -> None:
    asked = RepairRequest(SLOT, ORDERS, None)
    assert RepairRequest.from_bytes(asked.to_bytes()) == asked
    fields = orjson.loads(asked.to_bytes())
    del fields["keys"]
    with pytest.raises(UnreadableRequest):
        RepairRequest.from_bytes(orjson.dumps(fields))
    repairs = Asked(asked.to_bytes()).repairs
    assert repairs.take_whole_tables() == {ORDERS}
    assert repairs.take_whole_tables() == set()


class Asked:
    """Requests one after the other."""

    def __init__(self, *contents: bytes, shape: Table | None = None, keys_max: int = 100) -> None:
        self.said: list[str] = []
        self.repairs = RepairRequests(SLOT, self.said.append, keys_max=keys_max)
        for content in contents:
            self.repairs.add(content, published(*([shape] if shape else [])))


def test_the_order_of_a_keys_columns_makes_no_other_key() -> None:
    shape = table(column("a"), column("b"), key=("a", "b"))
    asked = Asked(request({"a": "x", "b": "y"}, {"b": "y", "a": "x"}), shape=shape)
    assert len(asked.repairs.keys(ORDERS)) == 1


def test_one_and_one_point_nought_and_true_are_three_keys() -> None:
    assert len(Asked(request({"id": 1}, {"id": 1.0}, {"id": True}, {"id": "1"})).repairs.keys(ORDERS)) == 4


def test_a_table_that_is_done_waits_no_longer() -> None:
    asked = Asked(request({"id": 1}))
    asked.repairs.done(ORDERS)
    assert (asked.repairs.tables(), asked.repairs.keys(ORDERS)) == ([], [])


def test_another_slots_requests_are_passed_over_in_silence() -> None:
    asked = Asked(request({"id": 1}, slot="lockstep_other"))
    assert (asked.repairs.tables(), asked.said) == ([], [])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "isn't JSON"),
        (request({"id": 1}, name=TableName("public", "items")), "public.items is ignored: the table isn't captured"),
        (request({"nr": 1}), r"ignored \(1\): the columns of its key are id"),
    ],
)
def test_what_cannot_be_answered_is_said_and_forgotten(content: bytes, words: str) -> None:
    asked = Asked(content)
    assert asked.repairs.tables() == []
    (said,) = asked.said
    assert re.search(words, said)


def test_an_append_only_table_has_no_keys_to_repair() -> None:
    asked = Asked(request({}), shape=table(key=()))
    assert (asked.repairs.tables(), len(asked.said)) == ([], 1)


def test_an_append_only_table_can_be_copied_whole() -> None:
    asked = Asked(RepairRequest(SLOT, ORDERS, None).to_bytes(), shape=table(key=()))
    assert (asked.repairs.take_whole_tables(), asked.said) == ({ORDERS}, [])


def test_no_more_keys_wait_than_the_bound() -> None:
    asked = Asked(request(*({"id": number} for number in range(4))), request({"id": 9}, {"id": 1}), keys_max=3)
    assert asked.repairs.keys(ORDERS) == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert len(asked.said) == 2
