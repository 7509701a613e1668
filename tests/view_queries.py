"""Random queries and histories for views: everything that is supported, over three small tables with many nulls."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from cdc.model.event import JsonValue, Position, RowEvent
from cdc.model.table import Column, ReplicaIdentity, Table, TableName
from cdc.model.tag import Tag
from views.shard import Shard
from views.sql.reader import RetainedRows, TopRows, read_view
from views.state.contract import State
from views.state.memory import MemoryState
from views.view import View

_OIDS = {"int4": 23, "int8": 20, "numeric": 1700, "text": 25, "bool": 16, "timestamp": 1114, "timestamptz": 1184}


def column(name: str, type_name: str, value_type: str | None = None, oid: int | None = None) -> Column:
    plain = value_type or type_name.partition("(")[0]
    return Column(name, type_name, plain, False, oid if oid is not None else _OIDS.get(plain, 0), -1)


def shape(name: str, key: Sequence[str], *columns: Column) -> Table:
    return Table(TableName("public", name), columns, tuple(key), ReplicaIdentity.DEFAULT)


TABLES: dict[TableName, Table] = {
    table.name: table
    for table in (
        shape(
            "a", ["id"], column("id", "int4"), column("g", "int4"), column("b_id", "int8"), column("n", "numeric(8,2)"),
            column("t", "text"), column("f", "bool"), column("d", "timestamp"), column("u", "numeric"),
        ),
        shape(
            "b", ["id"], column("id", "int8"), column("c_k", "int4"), column("y", "int4"), column("t", "text"),
            column("n", "numeric(8,2)"),
        ),
        shape("c", ["k", "l"], column("k", "int4"), column("l", "text"), column("v", "int4"), column("f", "bool")),
    )
}  # fmt: skip

_KINDS = {"int4": "int", "int8": "int", "numeric(8,2)": "num", "numeric": "any_num", "text": "text", "bool": "bool",
          "timestamp": "ts"}  # fmt: skip
_VALUES: Mapping[str, Sequence[JsonValue]] = {
    "int": [0, 1, 2, 3, -1, 7],
    "num": ["0.00", "1.10", "-2.25", "3.50", "100.00"],
    "any_num": ["0", "1.1", "1.10", "1.100", "-2.255", "3", "3.00"],
    "text": ["", "a", "b", "x", "y", "ab", "Ä", "z_%"],
    "bool": [True, False],
    "ts": ["2024-01-01T00:00:00", "2024-02-29T13:51:30.123456", "1999-12-31T23:59:59.9"],
}
_KEYS: Mapping[str, Sequence[Mapping[str, JsonValue]]] = {
    "a": [{"id": number} for number in range(1, 7)],
    "b": [{"id": number} for number in range(4)],
    "c": [{"k": number, "l": text} for number in range(3) for text in ("x", "y")],
}
Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True)
class Question:
    sql: str
    key: tuple[str, ...]
    top: TopRows | None = None

    @property
    def whole(self) -> str:
        """The query whose result the view holds."""
        if self.top is None:
            return self.sql
        per = ", ".join(self.top.per)
        order = ", ".join((self.top.order, *(f'{name} collate "C"' if name == "l" else name for name in self.key)))
        ranked = f"select q.*, row_number() over (partition by {per} order by {order}) as rank from ({self.sql}) as q"
        return f"select * from ({ranked}) as ranked where rank <= {self.top.n}"


@dataclass
class _Writer:
    """Writes one query: with ``exact`` for PostgreSQL, otherwise what DuckDB answers the same way."""

    draw: Draw
    exact: bool
    scope: dict[str, list[str]] = field(default_factory=dict)
    """The columns in reach, by their kind."""

    def one(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def maybe(self) -> bool:
        return bool(self.draw(st.booleans()))

    def enter(self, alias: str, table: str) -> None:
        for described in TABLES[TableName("public", table)].columns:
            self.scope.setdefault(_KINDS[described.type_name], []).append(f"{alias}.{described.name}")

    # --- expressions, in parentheses ---

    def value(self, kind: str, depth: int = 2) -> str:
        columns = self.scope.get(kind, ())
        if depth == 0 or self.draw(st.integers(0, 2)) == 0:
            return str(self.one(*columns)) if columns and self.draw(st.integers(0, 4)) else self.literal(kind)
        below = lambda other=kind: self.value(other, depth - 1)  # noqa: E731  short, and read at once
        general = [
            lambda: f"(case when {self.condition(depth - 1)} then {below()} else {below()} end)",
            lambda: f"(case when {self.condition(depth - 1)} then {below()} end)",
            lambda: f"coalesce({below()}, {below()})",
            lambda: f"nullif({below()}, {below()})",
        ]
        own: dict[str, list[Callable[[], str]]] = {
            "int": [
                lambda: f"({below()} {self.one('+', '-', '*')} {below()})",
                lambda: f"(- {below()})",
                lambda: f"abs({below()})",
                lambda: f"({below()} % nullif({below()}, 0))",
                lambda: f"length({below('text')})",
                *(
                    [lambda: f"({below()} / nullif({below()}, 0))", lambda: f"{below('num')}::int"]
                    if self.exact
                    else []
                ),
            ],
            "num": [
                lambda: f"({below()} {self.one('+', '-')} {below()})",
                *(
                    [
                        lambda: f"({below()} * {below()})",
                        lambda: f"({below()} / nullif({below('any_num')}, 0))",
                        lambda: f"({below()} % nullif({below('any_num')}, 0))",
                        lambda: f"{below('int')}::numeric",
                        lambda: f"{below('any_num')}::numeric(12,1)",
                    ]
                    if self.exact
                    else []
                ),
            ],
            "any_num": [lambda: f"({below()} {self.one('+', '-', '*')} {below('num')})"],
            "text": [lambda: f"({below()} || {below()})", lambda: f"{below('int')}::text"],
            "bool": [lambda: self.condition(depth - 1)],
            "ts": [
                lambda: f"date_trunc('{self.one('hour', 'day', 'week', 'month', 'quarter', 'year')}', {below()})",
                *([self.binned] if self.exact else []),
            ],
        }
        return str(self.one(*general, *own[kind])())

    def binned(self) -> str:
        width = self.one("'15 minutes'", "interval '1 day'", "'1 week 3 hours'", "'7 seconds'", "'250 milliseconds'")
        origin = self.one("'2000-01-01'", "timestamp '2024-02-29 13:50:00.5'", "'2030-01-01T00:00:00'")
        return f"date_bin({width}, {self.value('ts', 1)}, {origin})"

    def literal(self, kind: str) -> str:
        value = self.one(*_VALUES[kind])
        match kind:
            case "text":
                return f"'{value}'"
            case "ts":
                return f"timestamp '{value.replace('T', ' ')}'"
            case "bool":
                return "true" if value else "false"
            case _:
                return f"({value})"

    def condition(self, depth: int = 2) -> str:
        kind = self.one("int", "num", "text", "ts", *(["any_num"] if self.exact else []))
        left, right = self.value(kind, depth), self.value(kind, depth)
        suffix = ' collate "C"' if kind == "text" else ""
        order = self.one("<", "<=", ">", ">=")
        options = [
            f"({left} {self.one('=', '<>')} {right})",
            f"({left} {order} {right}{suffix})",
            f"({left} is {self.one('', 'not ')}null)",
            f"({left} is {self.one('', 'not ')}distinct from {right})",
            f"({left} {self.one('', 'not ')}in ({right}, {self.literal(kind)}))",
            f"({left} between ({right}{suffix}) and {self.literal(kind)})",
        ]
        if kind == "text":
            options.append(f"({left} {self.one('', 'not ')}like '{self.one('a%', '%b', '_', '%', 'z!_%', '%Ä%')}')")
        if self.scope.get("bool"):
            column = str(self.one(*self.scope["bool"]))
            options += [column, f"({column} is {self.one('true', 'not true', 'false')})"]
        if depth:
            below = self.condition(depth - 1)
            options += [f"(not {below})", f"({below} {self.one('and', 'or')} {options[0]})"]
        return str(self.one(*options))

    # --- from ---

    def source(self) -> tuple[str, list[str]]:
        """A ``from`` clause, and columns that are a key of its rows and never null."""
        form = self.draw(st.integers(0, 12))
        if form > 9:
            return self.compound(form)
        if form == 0:
            self.enter("a", "a")
            return "a", ["a.id"]
        if form == 1:
            self.enter("a", "a")
            self.enter("b", "b")
            extra = f" and {self._on('b', 'b')}" if self.maybe() else ""
            return f"a {self.one('left join', 'join')} b on a.b_id = b.id{extra}", ["a.id"]
        if form == 2:
            self.enter("b", "b")
            self.enter("c", "c")
            return "b join c on b.c_k = c.k", ["b.id", "c.k", "c.l"]
        if form == 3:
            self.enter("x", "a")
            self.enter("y", "a")
            return "a x join a y on x.g = y.g" + (" and x.id < y.id" if self.maybe() else ""), ["x.id", "y.id"]
        if form == 4:
            self.enter("a", "a")
            self.enter("b", "b")
            self.enter("c", "c")
            kind = self.one("join", "left join")
            where = " and c.l = 'x'" if kind == "left join" else ""
            return f"a {kind} b on b.id = a.b_id {kind} c on c.k = b.c_k{where}", [
                "a.id", *([] if where else ["c.k", "c.l"])
            ]  # fmt: skip
        if form == 5:
            self.enter("a", "a")
            self.scope.setdefault("int", []).extend(["s.m", "s.q"])
            inner = "select c_k as k, count(*) as m, coalesce(max(y), 5) as q from b group by c_k"
            return f"a left join ({inner}) s on s.k = a.g", ["a.id"]
        if form == 6:
            self.enter("a", "a")
            self.scope.setdefault("int", []).append("s.e")
            return "a left join (select id, coalesce(y, 3) as e from b where y is null or y < 3) s on s.id = a.b_id", [
                "a.id"
            ]
        if form == 7:
            self.enter("a", "a")
            self.enter("b", "b")
            self.enter("c", "c")
            return self.one(
                ("b join c on b.c_k = c.k join a on a.id = b.y", ["b.id", "c.k", "c.l"]),
                ("b join c on b.c_k = c.k left join a on a.id = b.y", ["b.id", "c.k", "c.l"]),
                ("c join b on b.c_k = c.k left join a on a.id = b.y", ["b.id", "c.k", "c.l"]),
                ("c join b on b.c_k = c.k join a on a.id = b.y", ["b.id", "c.k", "c.l"]),
            )
        if form == 8:  # the newest row as of another one
            self.enter("a", "a")
            self.enter("b", "b")
            newest = "select x.id, max(y.id) as last from a x join b y on y.y = x.g and y.n <= x.n group by x.id"
            return f"a join ({newest}) s on s.id = a.id {self.one('join', 'left join')} b on b.id = s.last", ["a.id"]
        self.enter("a", "a")
        self.enter("b", "b")
        return "(select * from a where g is not null) a join b using (t)", ["a.id", "b.id"]

    def compound(self, form: int) -> tuple[str, list[str]]:
        """The same with joins on several equalities, as if all tables have a tenant."""
        join = self.one("join", "left join", "left join")
        self.enter("x", "a")
        if form == 10:
            self.enter("c", "c")
            extra = f" and {self._on('c', 'c')}" if self.maybe() else ""
            return f"a x {join} c on c.k = x.g and c.l = x.t{extra}", ["x.id"]
        if form == 11:
            self.enter("y", "c")
            self.enter("z", "c")
            second = "z.k = y.k and z.l = x.t" if self.maybe() else "z.l = y.l and z.k = x.g"
            return f"a x {join} c y on y.k = x.g and y.l = x.t {join} c z on {second}", ["x.id"]
        self.enter("b", "b")
        return f"b join a x on x.b_id = b.id and x.g = b.c_k {join} c on c.k = b.c_k and c.l = b.t", ["b.id", "x.id"]

    def of_tenants(self) -> Question:
        """Rows by a part of what they were joined on, joined once more."""
        self.enter("b", "b")
        pairs = "select distinct a.g, a.t, c.k, c.l from a left join c on c.k = a.g and c.l = a.t"
        if self.maybe():
            pairs = (
                "select a.g, a.t, c.k, c.l, count(*) as n from a left join c on c.k = a.g and c.l = a.t"
                " group by a.g, a.t, c.k, c.l"
            )
        inner = self.one("select distinct s.g, s.k from", "select distinct s.t, s.l, s.g from")
        sql = (
            f"select b.id as k0, count(*) as v0, count(s.g) as v1 from b join ({inner} ({pairs}) s) s on s.g = b.c_k"
            f" {self.one('join', 'left join')} a x on x.b_id = b.id{self.where()} group by b.id"
        )
        return Question(sql, ("k0",))

    # --- conditions without which others would fail ---

    def guarded(self) -> list[str]:
        """Conditions of which one fails for rows that another one leaves out."""
        columns = self.scope.get("int", ["1"])
        divisor = self.one(*columns)
        conditions = [f"({divisor} <> 0)", f"(({self.one(*columns, '12')} % {divisor}) {self.one('=', '<>')} 1)"]
        return conditions if self.maybe() else conditions[::-1]

    def guarded_subquery(self) -> Question:
        """A subquery that fails for rows that nobody asks for."""
        of_groups = f"{self.one('sum', 'count', 'max')}(12 % x.{self.one('id', 'y')})"
        inside = self.one(
            f"select {of_groups} from b x where x.id = a.b_id",
            "select 12 % x.id from b x where x.id = a.b_id",
            "select 12 % x.y from b x where x.id = a.b_id and x.y <> 0",
            f"select {of_groups} from b x where x.id = a.b_id and 7 % x.y = 1 and x.y <> 0",
        )
        guard = "not exists (select 1 from b z where z.id = a.b_id and (z.id = 0 or z.y = 0))"
        value = f"case when {guard} then ({inside}) end"
        if self.maybe() or not self.exact:  # DuckDB computes everything that is joined
            return Question(f"select a.id as k0, {value} as v0 from a", ("k0",))
        made = "select x.id, 12 % x.id as q from b x"
        return Question(f"select a.id as k0, case when a.b_id <> 0 then s.q end as v0 from a left join ({made}) s"
                        " on s.id = a.b_id", ("k0",))  # fmt: skip

    def _on(self, alias: str, table: str) -> str:
        kept, self.scope = self.scope, {}
        self.enter(alias, table)
        condition = " and ".join(self.guarded()) if self.draw(st.integers(0, 2)) == 0 else self.condition(1)
        self.scope = kept
        return condition if alias in condition else f"{alias}.{'v' if table == 'c' else 'n'} > 1"

    # --- queries ---

    def where(self) -> str:
        if not self.maybe():
            return ""
        guarded = self.guarded() if self.draw(st.integers(0, 2)) == 0 else []
        return f" where {' and '.join([*(self.condition() for _ in range(self.one(1, 2))), *guarded])}"

    def rows(self) -> Question:
        from_, key = self.source()
        kinds = [
            self.one("int", "num", "text", "bool", "ts", *(["any_num"] if self.exact else []))
            for _ in range(self.one(1, 2, 3))
        ]
        names = [f"k{index}" for index in range(len(key))]
        selected = [f"{key_column} as {name}" for key_column, name in zip(key, names, strict=True)]
        selected += [f"{self.value(kind)} as v{index}" for index, kind in enumerate(kinds)]
        sql = f"select {', '.join(selected)} from {from_}{self.where()}"
        if self.maybe():
            return Question(sql, tuple(names))
        by = "k0" if kinds[0] in ("bool",) else ('v0 collate "C"' if kinds[0] == "text" else "v0")
        order = f"{by} {self.one('asc', 'desc')} nulls {self.one('first', 'last')}"
        keys = [name for name, made in zip(names, key, strict=True) if not made.endswith(".l")]
        if len(keys) != len(names):
            return Question(sql, tuple(names))
        per = self.one((names[-1],), ("v0",) if kinds[0] not in ("any_num",) else (names[0],))
        return Question(sql, tuple(names), TopRows(per, order, self.one(1, 2, 3)))

    def groups(self) -> Question:
        from_, _ = self.source()
        if self.maybe() and "b" in from_:
            self.scope = {}
            self.enter("a", "a")
            self.enter("b", "b")
            from_ = "b left join a on a.b_id = b.id"
        by = [
            f"coalesce({self.value(kind, 1)}, {self.literal(kind)})"
            for kind in self.draw(st.lists(st.sampled_from(["int", "text", "bool", "ts"]), min_size=1, max_size=2))
        ]
        aggregates = [self.aggregate() for _ in range(self.one(1, 2, 3))]
        selected = [f"{made} as k{index}" for index, made in enumerate(by)]
        selected += [f"{made} as v{index}" for index, made in enumerate(aggregates)]
        conditions = [
            "count(*) > 1",
            "count(*) % 2 = 1",
            "max(1) is not null",
            "count(*) > 1 and 6 % (count(*) - 1) = 0",
        ]
        having = f" having {self.one(*conditions)}" if self.maybe() else ""
        names = tuple(f"k{index}" for index in range(len(by)))
        sql = f"select {', '.join(selected)} from {from_}{self.where()} group by {', '.join(by)}{having}"
        return Question(sql, names)

    def direction(self) -> str:
        return f"{self.one('asc', 'desc')} nulls {self.one('first', 'last')}"

    def typed(self, kind: str) -> str:
        """A value for something that takes any type. A literal alone has none."""
        made = self.value(kind)
        return f"{made}::text" if made.startswith("'") else made

    def listed(self, kind: str) -> str:
        """An element and an order that ends with it."""
        made = self.typed(kind)
        if kind == "any_num":  # equal ones may look different
            made = f"({made})::numeric(20,6)"
        element = f'{made} collate "C"' if kind == "text" else made
        first = f"{self.value('int')} {self.direction()}, " if self.maybe() else ""
        return f"{made} order by {first}{element} {self.direction()}"

    def joined_text(self) -> str:
        made = self.value("text")
        first = f"{self.value('int')} {self.direction()}, " if self.maybe() else ""
        return f"string_agg({made}, ',' order by {first}{made} collate \"C\" {self.one('asc', 'desc')})"

    def aggregate(self) -> str:
        value = self.value

        def fraction() -> Any:
            return self.one(0, 0.1, 0.25, 0.5, 0.9, 1)

        def end() -> Any:
            return self.one("", " desc")

        options = [
            lambda: "count(*)",
            lambda: f"count({value(self.one('int', 'text', 'bool', 'num'))})",
            lambda: f"count(distinct {value(self.one('int', 'text', 'num'))})",
            lambda: f"count(distinct {self.one(*self.scope.get('any_num', ['1.0']))})",
            lambda: f"sum({value('int')})",
            lambda: f"sum({value('num')})",
            lambda: f"{self.one('min', 'max')}({value(self.one('int', 'ts'))})",
            lambda: f'{self.one("min", "max")}({value("text")} collate "C")',
            lambda: f"{self.one('bool_and', 'bool_or')}({value('bool')})",
            lambda: f"array_agg({self.listed(self.one('int', 'text'))})",
            self.joined_text,
        ]
        if self.exact:
            options += [
                lambda: f"avg({value(self.one('int', 'num', 'any_num'))})",
                lambda: f"sum({value('any_num')})",
                lambda: f"array_agg({self.listed(self.one('any_num', 'ts', 'bool'))})",
                lambda: f"jsonb_agg({self.listed(self.one('any_num', 'text', 'int'))})",
                lambda: f"count(distinct {value('any_num')})",
                lambda: (
                    f"percentile_cont({fraction()}) within group (order by {value(self.one('int', 'any_num'))}{end()})"
                ),
                lambda: f"percentile_disc({fraction()}) within group (order by {value(self.one('int', 'ts'))}{end()})",
                lambda: f"mode() within group (order by {value(self.one('int', 'bool'))}{end()})",
                lambda: f'mode() within group (order by {self.typed("text")} collate "C"{end()})',
            ]
        made = str(self.one(*options)())
        return f"{made} filter (where {self.condition(1)})" if self.draw(st.integers(0, 3)) == 0 else made

    def document(self, of: str, alias: str, table: str, more: str = "") -> str:
        """An object of values of one table's row."""
        kept, self.scope = self.scope, {}
        self.enter(alias, table)
        kinds = [self.one("int", "num", "any_num", "text", "bool", "ts") for _ in range(self.one(0, 1, 3))]
        names = ["z", "b", "bb", "ä", 'a"\\', "z", "Z"]
        values = [f"'{self.one(*names)}', {self.value(kind)}" for kind in kinds]
        self.scope = kept
        return f"{of}_build_object({', '.join([*values, *([more] if more else [])])})"

    def documents(self) -> Question:
        """Objects that contain lists of objects, by joins and by subqueries that read columns around them."""
        of = self.one("jsonb", "json")
        parent = f"'parent', (select {self.document('jsonb', 'b', 'b')} from b where b.id = x.b_id)"
        element = self.document(of, "x", "a", parent if self.maybe() else "")
        order = self.one("x.id", "x.g, x.id", 'x.t collate "C" desc, x.id')
        listed = f"{of}_agg({element} order by {order})"
        if self.maybe():
            listed += " filter (where x.f)"
        where = " and x.f" if self.maybe() else ""
        from_ = f"from a x where x.b_id = b.id{where}"
        list_or_empty = f"coalesce({listed}, '[]'::{of})"
        form = self.one("scalar", "lateral", "exists", "join")
        if form == "scalar":
            document = f"{of}_build_object('t', b.t, 'items', (select {list_or_empty} {from_}))"
            number = "(select count(*) + coalesce(sum(x.g), 0) from a x where x.g = b.y)"
            sql = f"select b.id as k0, {document} as v0, {number} as v1 from b"
        elif form == "lateral":
            join = self.one("left join lateral ({}) s on true", "cross join lateral ({}) s")
            lateral = join.format(f"select {list_or_empty} as items, count(*) as n {from_}")
            document = f"{of}_build_array(b.n, s.items, null, s.n)"
            sql = f"select b.id as k0, {document} as v0, s.n as v1 from b {lateral}{self.one('', ' where s.n > 0')}"
        elif form == "exists":
            document = self.document(of, "b", "b")
            exists = f"{self.one('exists', 'not exists')} (select 1 {from_})"
            other = "exists (select 1 from c where c.k = b.c_k)"
            sql = f"select b.id as k0, {document} as v0, {other} as v1 from b where {exists}"
        else:
            grouped = f"select x.b_id, {listed} as items from a x group by x.b_id"
            document = f"{of}_build_object('b', b.t, 'items', coalesce(s.items, '[]'))"
            join = f"left join ({grouped}) s on s.b_id = b.id"
            sql = f"select b.id as k0, {document} as v0, s.items::text as v1 from b {join}"
        return Question(sql, ("k0",))

    def distinct(self) -> Question:
        from_, _ = self.source()
        kinds = self.draw(st.lists(st.sampled_from(["int", "text", "bool", "ts"]), min_size=1, max_size=2))
        made = [f"coalesce({self.value(kind)}, {self.literal(kind)}) as k{index}" for index, kind in enumerate(kinds)]
        names = tuple(f"k{index}" for index in range(len(kinds)))
        return Question(f"select distinct {', '.join(made)} from {from_}{self.where()}", names)

    def union(self) -> Question:
        parts = []
        is_distinct = self.maybe()
        for index in range(self.one(2, 3)):
            self.scope = {}
            table = self.one("a", "b")
            self.enter(table, table)
            value = f"coalesce({self.value('int')}, 0)" if is_distinct else self.value(self.one("int"))
            parts.append(f"select {index} as part, {table}.id as id, {value} as v from {table}{self.where()}")
        if is_distinct:
            return Question(" union ".join(parts), ("part", "id", "v"))
        return Question(" union all ".join(parts), ("part", "id"))

    def nested(self) -> Question:
        inner = self.groups()
        names = ", ".join(inner.key)
        return Question(f"with g as ({inner.sql}) select {names}, count(*) as c from g group by {names}", inner.key)


@st.composite
def questions(draw: Draw, *, exact: bool) -> Question:
    """A query that can be kept. With ``exact`` any; otherwise one that DuckDB answers as PostgreSQL does."""
    writer = _Writer(draw, exact)
    forms = [writer.rows, writer.groups, writer.rows, writer.groups, writer.distinct, writer.union, writer.nested]
    forms += [writer.of_tenants, writer.guarded_subquery]
    form = writer.one(*forms, *([writer.documents] * 3 if exact else []))
    question: Question = form()
    return question


RowWrite = tuple[str, Mapping[str, JsonValue], Mapping[str, JsonValue] | None]
"""A table, a key, and its present row; None if it was deleted."""


@st.composite
def writes(draw: Draw) -> RowWrite:
    table = draw(st.sampled_from(["a", "a", "b", "c"]))
    key = draw(st.sampled_from(_KEYS[table]))
    if draw(st.integers(0, 3)) == 0:
        return table, key, None
    row: dict[str, JsonValue] = {}
    for described in TABLES[TableName("public", table)].columns:
        values = _VALUES[_KINDS[described.type_name]]
        row[described.name] = key.get(described.name, draw(st.sampled_from([None, *values])))
    return table, key, row


@st.composite
def histories(draw: Draw) -> list[list[RowWrite]]:
    """Transactions, each with the last write of each of its keys; sometimes a whole table is emptied."""
    steps: list[list[RowWrite]] = []
    for _ in range(draw(st.integers(1, 5))):
        step: list[RowWrite] = list(draw(st.lists(writes(), min_size=1, max_size=8)))
        if draw(st.integers(0, 6)) == 0:
            emptied = draw(st.sampled_from(["a", "b", "c"]))
            step += [(emptied, key, None) for key in _KEYS[emptied]]
        steps.append(list({(table, *key.values()): (table, key, row) for table, key, row in step}.values()))
    return steps


def events(step: Sequence[RowWrite], lsn: int) -> list[RowEvent]:
    return [
        RowEvent(TableName("public", table), key, str(Tag(1, lsn, seq)), row, Position(table, 0, lsn * 100 + seq))
        for seq, (table, key, row) in enumerate(step, start=1)
    ]


class KeptView:
    """A view with a sink in memory that its outputs fill."""

    def __init__(
        self,
        question: Question,
        state: State,
        tables: Mapping[TableName, Table] = TABLES,
        *,
        retain: Sequence[RetainedRows] = (),
        shard: Shard | None = None,
    ) -> None:
        self.question = question
        self.state = state
        self.retain = retain
        self.shard = shard
        self.plan = read_view(question.sql, tables, key=question.key, top=question.top, retain=retain)
        self.view = View(self.plan, tables, state, shard=shard)
        self.rows: dict[tuple[JsonValue, ...], Mapping[str, JsonValue]] = {}
        self.lsn = 0

    def step(self, step: Sequence[RowWrite], *, time_ms: int = 0) -> None:
        """Apply a transaction, and its output to the sink."""
        self.lsn += 8
        at = {("a", 0): self.lsn}
        self.view.step(events(step, self.lsn), epoch=1, lsn=self.lsn, offsets=at, time_ms=time_ms)
        self.deliver()

    def killed_after(self, step: Sequence[RowWrite], *, lsn: int, time_ms: int, portions: int) -> None:
        """A step whose output doesn't reach the sink, and this many portions of the rows that are too old by then."""
        self.view.step(events(step, lsn), epoch=1, lsn=lsn, offsets={("a", 0): lsn}, time_ms=time_ms)
        for _ in range(portions):
            self.view.expire()

    def built_anew(self, history: Sequence[Sequence[RowWrite]], *, time_ms: int = 0) -> "KeptView":
        """The same view after a history, built from the tables' rows at its end."""
        rows = {(table, *key.values()): (table, key, row) for step in history for table, key, row in step}
        kept = KeptView(self.question, MemoryState(), retain=self.retain, shard=self.shard)
        kept.view.begin_building()
        for name in ("a", "b", "c"):
            there = [row for row in rows.values() if row[0] == name and row[2] is not None]
            kept.view.build(events(there, 8))
        kept.view.end_building(epoch=1, lsn=8, offsets={}, time_ms=time_ms)
        kept.deliver()
        return kept

    def deliver(self) -> None:
        """Bring all pending output into the sink, without rows that are too old."""
        while self.view.expire():
            pass
        while (output := self.view.pending(3)) is not None:
            for change in output.changes:
                key = tuple(change.key.values())
                if change.row is None:
                    self.rows.pop(key, None)
                else:
                    self.rows[key] = change.row
            self.view.acknowledge(output)


def for_duckdb(sql: str) -> str:
    """The query in DuckDB's dialect, whose order of text is that of collation C."""
    return re.sub(r' collate "C"', "", sql)
