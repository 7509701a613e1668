"""What `lockstep views check` says of a query: every reason against it, its plan, and what it would cost."""

import json
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli.main import exit_code
from stack.stack import Endpoints
from tests.configurations import query
from tests.databases import Database

pytestmark = pytest.mark.live

LIKES_PER_POST = (
    "select p.id, p.body, count(l.user_id) as likes from posts p left join likes l on l.post_id = p.id"
    " group by p.id, p.body"
)


@pytest.fixture(scope="module")
def shop(shared_database: Database) -> Database:
    shared_database.execute(
        "create table users (id bigint primary key, name text not null)",
        "create table posts (id bigint primary key, user_id bigint not null, body text not null, at timestamptz)",
        "create table likes (post_id bigint, user_id bigint, primary key (post_id, user_id))",
        "create table notes (line text)",
        "create table parted (id int, day date, primary key (id, day)) partition by range (day)",
        "create table parted_1 partition of parted default",
        "insert into users select n, 'user ' || n from generate_series(1, 100) n",
        "insert into posts select n, n % 100 + 1, repeat('x', 40), now() from generate_series(1, 1000) n",
        "insert into likes select p.id, u.id from posts p join users u on (p.id + u.id) % 20 = 0",
        "insert into parted select n, date '2024-01-01' + n % 10 from generate_series(1, 50) n",
        "analyze users, posts, likes, parted, parted_1",
    )
    return shared_database


def check(shop: Database, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = exit_code(["views", "check", "--dsn", shop.dsn, "--json", *arguments])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, document


def test_a_query_that_can_be_kept_has_a_plan_and_costs(shop: Database, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = check(shop, capsys, "--sql", LIKES_PER_POST)
    assert (code, document["can_be_kept"], document["refusals"]) == (0, True, [])
    assert document["key"] == ["id"]
    assert document["tables"] == ["public.posts", "public.likes"]
    assert document["plan"]["operator"] == "group"
    assert document["plan"]["sources"][0]["operator"] == "left join"
    changes = {change["table"]: change for change in document["estimate"]["changes"]}
    assert changes["public.posts"] == {"table": "public.posts", "rows": 1000, "average": 1.0, "largest": 1}
    assert changes["public.likes"]["rows"] == 5000
    assert changes["public.likes"]["largest"] == 1
    assert document["estimate"]["rows"] == pytest.approx(1000, rel=0.1)
    assert document["estimate"]["assumed"] == []


def test_every_reason_comes_with_clause_and_remedy(shop: Database, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "select id, lower(body) as b, now() as n from posts order by id"
    code, document = check(shop, capsys, "--sql", sql)
    assert (code, document["can_be_kept"], document["plan"]) == (1, False, None)
    assert [refusal["clause"] for refusal in document["refusals"]] == [
        "ORDER BY id",
        "LOWER(body)",
        "CURRENT_TIMESTAMP",
    ]
    assert all(refusal["reason"] and refusal["remedy"] for refusal in document["refusals"])


def test_a_column_that_the_role_may_not_read_is_named(shop: Database, capsys: pytest.CaptureFixture[str]) -> None:
    role = shop.role()
    shop.execute(f"grant select (id) on posts to {role}")
    code = exit_code(
        ["views", "check", "--dsn", shop.source(user=role).dsn, "--json", "--sql", "select id, body from posts"]
    )
    document = json.loads(capsys.readouterr().out)
    assert code == 1
    assert "permission denied" in document["refusals"][0]["reason"]


def test_people_see_the_plan_as_a_tree_of_80_columns(
    shop: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = exit_code(["views", "check", "--dsn", shop.dsn, "--sql", LIKES_PER_POST])
    text = capsys.readouterr().out
    assert code == 0
    lines = text.splitlines()
    assert lines[:2] == ["this query can be kept", "key: id"]
    assert any(line.startswith("└── left join on posts.id = likes.post_id") for line in lines)
    assert "keeps the rows of both sides" in text
    assert any(line.split()[:2] == ["public.likes", "5,000"] for line in lines)
    assert "estimates" in text


def _config(directory: Path, shop: Database, endpoints: Endpoints, source: str, more: str = "") -> Path:
    """A configuration with these lines of its source, and more sections."""
    path = directory / "lockstep.toml"
    path.write_text(
        f"""
        [pipeline]
        name = "shop"
        [source]
        dsn = "{shop.dsn}"
        {source}
        [kafka]
        bootstrap_servers = "{endpoints.kafka_bootstrap}"
        {more}
        """
    )
    return path


def test_only_the_tables_of_the_configuration_count_as_captured(
    shop: Database, endpoints: Endpoints, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = _config(tmp_path, shop, endpoints, 'tables = ["public.posts"]')
    code = exit_code(["views", "check", "--config", str(config), "--json", "--sql", LIKES_PER_POST])
    document = json.loads(capsys.readouterr().out)
    assert code == 1
    assert [refusal["clause"] for refusal in document["refusals"]] == ["likes AS l"]
    code = exit_code(["views", "check", "--config", str(config), "--json", "--sql", "select id, body from posts"])
    assert (code, json.loads(capsys.readouterr().out)["key"]) == (0, ["id"])


def test_a_query_may_read_a_view_of_the_configuration_and_an_append_only_table(
    shop: Database, endpoints: Endpoints, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = _config(
        tmp_path,
        shop,
        endpoints,
        """
        tables = ["public.likes", "public.posts", "public.notes"]
        options = { "public.notes" = { append_only = true } }
        """,
        f"""
        [sinks.cache]
        type = "redis"
        url = "{endpoints.redis_url}"
        apply = false
        {query("views.liked", "select post_id, count(*) as n from likes group by post_id", key=["post_id"])}
        {query("views.newest", "select id, user_id from posts")}
        top = {{ per = ["user_id"], order = "id desc", n = 1 }}
        """,
    )

    def checked(sql: str) -> tuple[int, dict[str, Any]]:
        code = exit_code(["views", "check", "--config", str(config), "--json", "--sql", sql])
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return code, document

    code, document = checked("select p.id, v.n from posts p join views.liked v on v.post_id = p.id where v.n > 2")
    assert (code, document["refusals"], document["key"]) == (0, [], ["id"])
    assert document["tables"] == ["public.posts", "public.likes"]
    code, document = checked("select id from views.newest")
    assert (code, [refusal["clause"] for refusal in document["refusals"]]) == (1, ["from views.newest"])
    code, document = checked("select line, count(*) as n from notes where line is not null group by line")
    assert (code, document["refusals"], document["key"]) == (0, [], ["line"])
    code, document = checked("select n._event as event, n.* from notes n")
    assert (code, document["refusals"], document["key"]) == (0, [], ["event"])
