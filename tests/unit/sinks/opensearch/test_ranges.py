"""sinks.opensearch.ranges"""

from typing import Any

import pytest

from sinks.opensearch.ranges import searchable_range


@pytest.mark.parametrize(
    ("value_type", "text", "expected"),
    [
        ("int4range", "[1,11)", {"gte": "1", "lt": "11"}),
        ("int8range", "(,)", {}),
        ("int4range", "[-5,)", {"gte": "-5"}),
        ("int4range", "empty", None),
        ("numrange", "(5.30,]", {"gt": "5.30"}),
        ("numrange", "[-0.1,1e400]", None),
        ("numrange", "[NaN,NaN]", None),
        ("numrange", "(1.00000000000000000000,1.00000000000000000001)",
         {"gte": "1.00000000000000000000", "lte": "1.00000000000000000001"}),
        ("numrange", "(1,1.5)", {"gt": "1", "lt": "1.5"}),
        ("tsrange", '["2019-03-31 15:30:00.0001","2019-03-31 15:30:00.0009")',
         {"gte": "2019-03-31T15:30:00.0001Z", "lte": "2019-03-31T15:30:00.0009Z"}),
        ("tsrange", '("2019-03-31 15:30:00","2019-03-31 15:30:00.001")',
         {"gte": "2019-03-31T15:30:00Z", "lte": "2019-03-31T15:30:00.001Z"}),
        ("daterange", "[2019-03-31,infinity)", {"gte": "2019-03-31"}),
        ("daterange", '["0044-03-15 BC",2019-03-31)', None),
        ("daterange", "[2019-03-31,21016-01-01)", None),
        ("tsrange", '["2019-03-31 15:30:00","2019-04-01 00:00:00.123456"]',
         {"gte": "2019-03-31T15:30:00Z", "lte": "2019-04-01T00:00:00.123456Z"}),
        ("tstzrange", '["2014-08-04 00:00:00+00",infinity)', {"gte": "2014-08-04T00:00:00Z"}),
        ("tstzrange", "(-infinity,infinity)", {}),
        ("nummultirange", "{[1,2),[3.5,7]}", [{"gte": "1", "lt": "2"}, {"gte": "3.5", "lte": "7"}]),
        ("int4multirange", "{}", None),
        ("datemultirange", "{[2019-03-31,2019-04-02),[2020-01-02,)}",
         [{"gte": "2019-03-31", "lt": "2019-04-02"}, {"gte": "2020-01-02"}]),
        ("tstzmultirange", '{["2014-08-04 00:00:00+00","2014-08-05 00:00:00+00")}',
         [{"gte": "2014-08-04T00:00:00Z", "lt": "2014-08-05T00:00:00Z"}]),
        ("int4range", ["[1,2)", None, "empty", ["[5,)"]], [{"gte": "1", "lt": "2"}, [{"gte": "5"}]]),
        ("int4range", [], None),
        ("int4range", "[0:1]={}", None),
        ("int4range", None, None),
    ],
)  # fmt: skip
def test_a_range_is_an_object_of_its_bounds(value_type: str, text: Any, expected: Any) -> None:
    assert searchable_range(text, value_type) == expected
