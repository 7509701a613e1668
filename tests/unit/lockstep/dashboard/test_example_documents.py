"""The documents that the page is tried with are such as the API answers."""

import pytest

from lockstep.dashboard import model
from tests.browser import example

_MODELS = {
    "findings": model.Findings,
    "tables": model.Tables,
    "schemas": model.Schemas,
    "sink": model.SinkDetail,
    "copies": model.Copies,
    "key": model.FollowedKey,
    "rejections": model.Rejections,
    "verify": model.Comparisons,
    "alerts": model.Alerts,
}


@pytest.mark.parametrize("name", example.STATES)
def test_a_state_is_one_of_the_api(name: str) -> None:
    model.PipelineState.model_validate(example.STATES[name]())


@pytest.mark.parametrize("name", example.documents())
def test_a_document_is_one_of_the_api(name: str) -> None:
    _MODELS[name].model_validate(example.documents()[name])


def test_an_event_of_the_tail_is_one_of_the_api() -> None:
    model.TailEvent.model_validate(example.tail_event())
