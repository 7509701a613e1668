"""Spark's offsets as text."""

import pytest

from cdc.model.errors import LockstepError
from jobs.query.checkpoint import checkpoint_location, parse_offsets

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'


def test_offsets_of_every_partition_are_read() -> None:
    text = f'v1\n{METADATA}\n{{"shop.public.orders":{{"0":17,"1":4}},"shop.public.items":{{"0":0}}}}'
    assert parse_offsets(text) == {
        ("shop.public.orders", 0): 17,
        ("shop.public.orders", 1): 4,
        ("shop.public.items", 0): 0,
    }


@pytest.mark.parametrize("text", ["", "v1", f"v1\n{METADATA}", f"v9\n{METADATA}\n{{}}", f"v1\n{METADATA}\n{{}}\n{{}}"])
def test_an_unknown_form_is_not_guessed_at(text: str) -> None:
    with pytest.raises(LockstepError, match="a form that this version doesn't know"):
        parse_offsets(text)


def test_every_generation_of_every_pipelines_sink_has_a_checkpoint_of_its_own() -> None:
    locations = {
        checkpoint_location("s3a://bucket/state/", pipeline=pipeline, sink="search", generation=generation)
        for pipeline in ("shop", "stock")
        for generation in (1, 2)
    }
    assert len(locations) == 4
    assert "s3a://bucket/state/shop/search/g2" in locations
