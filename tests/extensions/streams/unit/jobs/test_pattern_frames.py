"""A pattern of the configuration as events are matched with it."""

from typing import Any

import pytest

from extensions.streams.executor.pattern_matching import Pattern, Stage
from extensions.streams.jobs.pattern_frames import stages_of
from extensions.streams.settings import PatternSettings

A, B, C = ({"name": name, "stream": "events"} for name in "abc")
WITHOUT = {"without": True}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([A, B], (Stage(0), Stage(1))),
        ([{**A, "times": 3}], (Stage(0), Stage(0), Stage(0))),
        ([A, {**B, **WITHOUT}, C], (Stage(0, 0b010), Stage(2))),
        ([A, {**B, **WITHOUT}, {**C, **WITHOUT}], (Stage(0, 0b110),)),
        ([{**A, "times": 2}, {**B, **WITHOUT}, C], (Stage(0), Stage(0, 0b010), Stage(2))),
    ],
)
def test_a_match_has_a_stage_for_each_of_its_events(steps: list[dict[str, Any]], expected: tuple[Stage, ...]) -> None:
    settings = PatternSettings.model_validate({"per": ["id"], "within": "2 seconds", "steps": steps})
    assert stages_of(settings) == Pattern(expected, 2_000_000)
