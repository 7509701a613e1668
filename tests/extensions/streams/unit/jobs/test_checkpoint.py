"""Spark's offsets as text."""

import pytest

from cdc.model.errors import LockstepError
from extensions.streams.jobs.checkpoint import Checkpoint, checkpoint_location, parse_planned

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'


@pytest.mark.parametrize("text", ["", "v1", f"v1\n{METADATA}", f"v9\n{METADATA}\n{{}}", f"v1\n{METADATA}\n{{}}\n{{}}"])
def test_an_unknown_form_is_not_guessed_at(text: str) -> None:
    with pytest.raises(LockstepError, match="a form that this version doesn't know"):
        parse_planned(text, sources=1)


def test_every_generation_of_every_pipelines_query_has_a_checkpoint_of_its_own() -> None:
    locations = {
        checkpoint_location("s3a://bucket/state/", pipeline=pipeline, query="search", generation=generation)
        for pipeline in ("shop", "stock")
        for generation in (1, 2)
    }
    assert len(locations) == 4
    assert "s3a://bucket/state/shop/search/g2" in locations


class _Files(Checkpoint):
    """A checkpoint of which these files are there."""

    def __init__(self, files: dict[str, str]) -> None:
        self.location = "somewhere"
        self._texts = files

    def _newest(self, kind: str) -> int | None:
        numbers = [int(name.partition("/")[2]) for name in self._texts if name.startswith(f"{kind}/")]
        return max(numbers, default=None)

    def _read(self, name: str) -> str | None:
        return self._texts.get(name)


def test_a_query_of_several_sources_has_a_line_for_each_and_one_watermark() -> None:
    metadata = '{"batchWatermarkMs":1700000000123,"batchTimestampMs":1700000000000,"conf":{}}'
    text = f'v1\n{metadata}\n{{"web.searches":{{"0":17}}}}\n{{"web.clicks":{{"0":4,"1":2}}}}'
    planned = parse_planned(text, sources=2)
    assert planned.watermark_ms == 1700000000123
    assert planned.ends == {("web.searches", 0): 17, ("web.clicks", 0): 4, ("web.clicks", 1): 2}
    assert parse_planned(f'v1\n{metadata}\n-\n{{"web.clicks":{{"0":4}}}}', sources=2).ends == {("web.clicks", 0): 4}
    with pytest.raises(LockstepError, match="a form that this version doesn't know"):
        parse_planned(text, sources=1)


def test_a_batch_is_planned_before_it_is_committed() -> None:
    files = {"offsets/0": f'v1\n{METADATA}\n{{"web.searches":{{"0":17}}}}'}
    killed = _Files(files)
    assert killed.newest_planned() == 0
    planned = killed.planned(0, sources=1)
    assert planned is not None
    assert planned.ends == {("web.searches", 0): 17}
    assert killed.planned(1, sources=1) is None
    assert _Files({}).newest_planned() is None
