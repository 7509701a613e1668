"""The shop's values: the same again for the same seed, and of the sizes that matter."""

import json
import random

from extensions.demo import samples


def test_the_same_seed_gives_the_same_rows():
    product, other = (samples.product(random.Random(7)) for _ in range(2))

    assert product.pop("attributes").obj == other.pop("attributes").obj
    assert product == other


def test_a_long_text_is_stored_out_of_line():
    rng = random.Random(1)

    assert all(len(samples.long_text(rng)) > 8192 for _ in range(20))


def test_a_number_in_json_keeps_more_digits_than_a_double_has():
    written = samples.profile(random.Random(3))
    text = written.dumps(written.obj)

    digits = text.split('"ratio": ')[1].split(",")[0]
    assert len(digits) > 18
    assert str(json.loads(text)["ratio"]) != digits


def test_a_uuid_is_of_version_four():
    assert samples.new_uuid(random.Random(1)).version == 4
