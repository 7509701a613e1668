"""extensions.searches.search_queries"""

from typing import Any

import pytest

from extensions.searches.search_queries import query_problems, time_problems


@pytest.mark.parametrize(
    "query",
    [
        {"match_all": {}},
        {"term": {"city": "now"}},
        {"terms": {"city": ["Bern", "Thun"]}},
        {"range": {"age": {"gte": 3, "lt": "9"}}},
        {"range": {"day": {"gte": "2026-01-01||/M"}}},
        {"exists": {"field": "city"}},
        {"multi_match": {"query": "rust", "fields": ["skill^2", "city"]}},
        {"simple_query_string": {"query": "rust + now", "fields": ["skill"]}},
        {
            "bool": {
                "must": {"match": {"skill": "rust"}},
                "must_not": [{"term": {"city": "Bern"}}],
                "minimum_should_match": 1,
                "should": [{"constant_score": {"filter": {"prefix": {"city": "T"}}}}, {"match_none": {}}],
            }
        },
        {"dis_max": {"queries": [{"term": {"a": 1}}, {"term": {"b": 1}}]}},
        {"geo_distance": {"distance": "2km", "place": {"lat": 1, "lon": 2}}},
        {"fuzzy": {"skill": {"value": "rsut", "rewrite": "constant_score"}}},
        {"prefix": {"city": "B"}},
        {"wildcard": {"city": {"value": "B*", "rewrite": "constant_score"}}},
        {"match": {"skill": {"query": "rsut", "fuzziness": "AUTO", "fuzzy_rewrite": "constant_score"}}},
        {"match_bool_prefix": {"skill": "rust and s"}},
        {"multi_match": {"query": "rust s", "fields": ["skill"], "type": "bool_prefix"}},
        {"simple_query_string": {"query": 'sq* "rust sql"~2 | ~ | c\\~', "fields": ["skill"]}},
        {"simple_query_string": {"query": '"rust~1 \\" sql~1"', "fields": ["skill"]}},
        {"simple_query_string": {"query": "~/rust~1", "fields": ["skill"], "flags": "AND|or"}},
        {"intervals": {"skill": {"all_of": {"intervals": [{"match": {"query": "rust", "max_gaps": 1}}]}}}},
    ],
)
def test_what_depends_on_the_document_alone_can_stand(query: Any) -> None:
    assert query_problems(query) == []


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ([], "a query is an object with one name"),
        ({}, "a query is an object with one name"),
        ({"term": {"a": 1}, "match": {"a": 1}}, "a query is an object with one name"),
        ({"term": "a"}, "term is an object"),
        ({"bool": []}, "bool is an object"),
        ({"range": {"day": {"gte": "now-1d"}}}, "range of day depends on the time"),
        ({"range": {"day": {"to": " NOW/d"}}}, "range of day depends on the time"),
        ({"script": {"script": "true"}}, "script can't stand"),
        ({"query_string": {"query": "day:>now"}}, "query_string can't stand; simple_query_string can"),
        ({"ids": {"values": ["1"]}}, "ids can't stand; name the columns of the key"),
        ({"has_child": {"type": "a", "query": {"match_all": {}}}}, "has_child can't stand"),
        ({"term": {"_id": "1"}}, "term asks for _id, which isn't part of a document"),
        ({"exists": {"field": "_routing"}}, "exists asks for _routing, which isn't part of a document"),
        ({"exists": {"field": "c*"}}, "exists has to name its field in full"),
        ({"terms": {"city": {"index": "x", "id": "1", "path": "y"}}}, "terms takes its values from another document"),
        ({"multi_match": {"query": "rust"}}, "multi_match has to name its fields"),
        ({"multi_match": {"query": "rust", "fields": ["s*"]}}, "multi_match has to name each of its fields in full"),
        ({"bool": {"mustNot": [{"ids": {"values": ["1"]}}]}}, "bool can't have mustNot"),
        ({"multi_match": {"query": "a", "fields": ["city", "_index^2"]}}, "multi_match asks for _index, which isn't"),
        ({"match": {"a": {"query": "x", "cutoff_frequency": 0.1}}}, "match of a has cutoff_frequency"),
        ({"multi_match": {"query": "x", "fields": ["a"], "cutoff_frequency": 1}}, "multi_match has cutoff_frequency"),
        (
            {"intervals": {"a": {"match": {"query": "x", "filter": {"script": {"source": "true"}}}}}},
            "intervals of a has a script",
        ),
        ({"fuzzy": {"a": "x"}}, 'fuzzy of a takes 50 words of the index, whatever other documents have: give it "rewr'),
        ({"fuzzy": {"a": {"value": "x", "rewrite": "top_terms_9"}}}, "fuzzy of a takes 50 words of the index"),
        ({"prefix": {"a": {"value": "x", "rewrite": "top_terms_9"}}}, "prefix of a has a rewrite by which"),
        ({"wildcard": {"a": {"value": "x", "rewrite": "scoring_boolean"}}}, "wildcard of a has a rewrite by which"),
        ({"regexp": {"a": {"value": "x", "rewrite": "constant_score_boolean"}}}, "regexp of a has a rewrite by which"),
        ({"match_phrase_prefix": {"a": "x"}}, "match_phrase_prefix can't stand; it takes 50 words of the index"),
        ({"match": {"a": {"query": "x", "fuzziness": 1}}}, "match of a has fuzziness, by which it takes 50 words"),
        ({"match_bool_prefix": {"a": {"query": "x y", "fuzziness": "AUTO"}}}, "match_bool_prefix of a has fuzziness"),
        ({"multi_match": {"query": "x", "fields": ["a"], "fuzziness": 2}}, "multi_match has fuzziness"),
        (
            {"multi_match": {"query": "x", "fields": ["a"], "type": "phrase_prefix"}},
            "multi_match has type phrase_prefix, by which it takes 50 words of the index: bool_prefix can stand",
        ),
        ({"simple_query_string": {"query": "+rsut~1", "fields": ["a"]}}, "simple_query_string has a word with ~"),
        ({"simple_query_string": {"query": "x~", "fields": ["a"], "flags": "OR|FUZZY"}}, "has a word with ~"),
        (
            {"intervals": {"a": {"any_of": {"intervals": [{"match": {"query": "x"}}, {"prefix": {"prefix": "y"}}]}}}},
            "intervals of a has prefix, which is refused once 128 words of the index fit",
        ),
    ],
)
def test_what_may_change_without_the_document_is_refused_wherever_it_is(query: Any, problem: str) -> None:
    for whole in (query, {"bool": {"filter": [{"match_all": {}}, query]}}, {"constant_score": {"filter": query}}):
        (found,) = query_problems(whole)
        assert problem in found


def test_a_query_of_any_depth_is_looked_at_to_a_bound() -> None:
    query: Any = {"match_all": {}}
    for _ in range(50_000):
        query = {"constant_score": {"filter": query}}
    assert query_problems(query) == ["queries lie in each other more than 20 deep"]


FIELDS = {
    "at": {"type": "date"},
    "during": {"type": "date_range"},
    "city": {"type": "text", "fields": {"day": {"type": "date"}}},
    "doc": {"properties": {"at": {"type": "date_nanos"}}},
}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"term": {"at": "now/d"}}, "at"),
        ({"term": {"during": {"value": "NOW-1h"}}}, "during"),
        ({"terms": {"city.day": ["2026-01-01", "now"]}}, "city.day"),
        ({"match": {"doc.at": {"query": "now+1d"}}}, "doc.at"),
        ({"multi_match": {"query": "now", "fields": ["city", "at^2"]}}, "at"),
        ({"simple_query_string": {"query": "rust | now", "fields": ["city", "at"]}}, "at"),
    ],
)
def test_now_is_the_time_where_it_is_asked_of_a_date(query: Any, field: str) -> None:
    for whole in (query, {"bool": {"must": query}}, {"dis_max": {"queries": [{"match_all": {}}, query]}}):
        assert query_problems(whole) == []
        (found,) = time_problems(whole, FIELDS)
        assert f"of {field} depends on the time" in found


@pytest.mark.parametrize(
    "query",
    [
        {"match": {"city": "now"}},
        {"term": {"at": "2026-01-01"}},
        {"range": {"at": {"gte": "2026-01-01||/d"}}},
        {"exists": {"field": "at"}},
        {"multi_match": {"query": "now", "fields": ["city"]}},
        {"match_all": {}},
    ],
)
def test_now_is_a_word_elsewhere(query: Any) -> None:
    assert time_problems({"bool": {"filter": [query]}}, FIELDS) == []
