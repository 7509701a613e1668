import pytest

from cdc.model.errors import ForeignRecord
from cdc.protocol.view_steps import ViewStep, step_key

STEP = ViewStep("timeline", 2, 1, 0x16B3748, 17, "run", True, {("shop.public.tweets", 0): 5}, "aRfR7pEWTsSMXNRlmLcbzA")


def test_a_step_is_what_was_written() -> None:
    assert ViewStep.from_bytes(STEP.to_bytes(), "it") == STEP
    assert STEP.key() == step_key("timeline", 2) == b'["timeline",2]'


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", STEP.to_bytes().replace(b'"end":17', b'"end":-1'), STEP.to_bytes().replace(b",5]", b',"5"]')],
)
def test_what_no_lockstep_has_written_is_foreign(value: bytes) -> None:
    with pytest.raises(ForeignRecord):
        ViewStep.from_bytes(value, "it")
