"""sqlglot's tree of a query -> relations: scans, joins, groups and unions, with what is known of their rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeGuard

from sqlglot import exp
from sqlglot.expressions import Expr as Tree

from cdc.model.append_only import OWN_COLUMNS, is_append_only
from cdc.model.table import Table, TableName
from views.expressions import (
    Aggregate,
    Call,
    Expression,
    Literal,
    Ref,
    SortKey,
    aggregate_refs,
    all_of,
    can_fail,
    refs,
    rewritten,
)
from views.failures import Refusal
from views.plan import Filter, Group, Join, Node, Project, Scan, Union
from views.sql.expression_reader import ExpressionReader, common_type, compared, united
from views.sql.refusals import Refuse, only, refuse, refused
from views.sql.relations import (
    Dependency,
    Relation,
    all_possible,
    narrowed,
    never_null_after,
    plain,
    settled,
    smallest_key,
    with_condition,
)
from views.sql.tables_read import identifier_text
from views.values import BOOL, INT8, TEXT, Kind, SqlType, type_of


@dataclass(frozen=True)
class _Item:
    """A part of ``from``. ``hidden`` are the names that ``*`` leaves out."""

    alias: str
    names: Mapping[str, Expression]
    hidden: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Known:
    """A query of ``with``, and the queries that it can name itself."""

    tree: Tree
    known: Mapping[str, "_Known"]


@dataclass
class _Scope:
    items: list[_Item] = field(default_factory=list)
    merged: dict[str, Expression] = field(default_factory=dict)
    """Columns of ``using``, which need no table name before them."""

    outer: "_Scope | None" = None
    """The scope of the query around a subquery."""

    joined: Relation | None = None

    @property
    def relation(self) -> Relation:
        """What ``from`` and subqueries have been joined to so far."""
        assert self.joined is not None
        return self.joined

    def resolve(self, column: exp.Column) -> Expression:
        if isinstance(column.this, exp.Star):
            refuse(column, "`*` can't stand here", "name the columns")
        if column.args.get("db"):
            refuse(column, "a column with a schema before it isn't supported", "give the table an alias")
        name = identifier_text(column.this)
        if column.table:
            alias = identifier_text(column.args["table"])
            for item in self.items:
                if item.alias == alias:
                    if name not in item.names:
                        refuse(column, f"{alias!r} has no column {name!r}", "look at the table's columns")
                    return item.names[name]
            if self.outer is not None:
                return self.outer.resolve(column)
            refuse(column, f"there is no {alias!r} in `from`", "name a table or alias of this query")
        if name in self.merged:
            return self.merged[name]
        found = [item.names[name] for item in self.items if name in item.names]
        if not found and self.outer is not None:
            return self.outer.resolve(column)
        if not found:
            refuse(column, f"there is no column {name!r}", "look at the tables' columns")
        if len(found) > 1:
            refuse(column, "more than one table has it", "write the table's alias before it")
        return found[0]


@dataclass(frozen=True)
class _Correlated:
    """A subquery's scope, and the pairs (outside, inside) by which it is joined to the query around it."""

    scope: _Scope
    outer: _Scope
    pairs: tuple[tuple[Expression, Expression], ...]


@dataclass(frozen=True)
class _Joinable:
    """Rows to be joined by equalities: pairs (outside, inside)."""

    relation: Relation
    pairs: tuple[tuple[Expression, Expression], ...]

    @property
    def is_unique(self) -> bool:
        """Whether each outside row has at most one partner, as far as is known."""
        sides = {made.id for _, side in self.pairs if isinstance(made := plain(side), Ref)}
        return _ids(self.relation.node.key) <= self.relation.closure(sides)


_New = Callable[[SqlType], Ref]
"""Makes a column of a type."""


class QueryReader:
    """Reads one query. ``tables`` are the captured tables' shapes; ``refusals`` collects what can't be maintained."""

    def __init__(self, tables: Mapping[TableName, Table]) -> None:
        self._tables = tables
        self._ids = count(1)
        self.refusals: list[Refusal] = []

    def read(self, tree: Tree, known: Mapping[str, _Known] | None = None) -> Relation:
        """Read a query or a part of one. Raises Refuse if the rest can't be read."""
        known = dict(known or {})
        if (with_ := tree.args.get("with_")) is not None:
            if with_.args.get("recursive"):
                refuse(
                    with_,
                    "recursive queries can't be kept",
                    "keep the depth in a column, or join a fixed number of times",
                )
            for expression in with_.expressions:
                only(expression, "alias")
                if expression.args["alias"].args.get("columns"):
                    refuse(expression, "names of columns in `with` aren't supported", "name them in its select list")
                known[identifier_text(expression.args["alias"].this)] = _Known(expression.this, dict(known))
        self._refuse_order(tree)
        match tree:
            case exp.Subquery():
                only(tree, "alias", "with_")
                return self.read(tree.this, known)
            case exp.Union() if type(tree) is exp.Union:
                return self._union(tree, known)
            case exp.Select():
                return self._select(tree, known)
        raise refused(tree, "this isn't a query that can be kept", "write `select`, or `union` of such")

    def _refuse_order(self, tree: Tree) -> None:
        for name in ("order", "limit", "offset", "fetch"):
            if (part := tree.args.get(name)) is not None:
                self._note(Refusal(" ".join(part.sql("postgres").split()), "a view's rows have no order of their own",
                                   "use `top` of the view for the first rows of each key"))  # fmt: skip

    def _note(self, refusal: Refusal) -> None:
        if refusal not in self.refusals:
            self.refusals.append(refusal)

    def _new(self, of: SqlType) -> Ref:
        return Ref(next(self._ids), of)

    # --- select ---

    def _select(self, tree: exp.Select, known: Mapping[str, _Known]) -> Relation:
        only(
            tree, "expressions", "from_", "joins", "where", "group", "having", "distinct", "with_", "order", "limit",
            "offset",
        )  # fmt: skip
        if tree.args.get("from_") is None:
            refuse(tree, "it reads no table", "write `from`")
        scope = _Scope()
        self._from(tree, scope, known)
        if (where := tree.args.get("where")) is not None:
            self._filter(where.this, scope, known)
        relation = self._grouped_or_plain(tree, scope, known)
        if (distinct := tree.args.get("distinct")) is not None:
            if distinct.args.get("on"):
                refuse("distinct on", "it isn't supported", "use `top` of the view with n = 1")
            relation = _distinct(self._new, relation)
        return relation

    def _filter(self, tree: Tree, scope: _Scope, known: Mapping[str, _Known]) -> None:
        reader = ExpressionReader(scope.resolve, join_subquery=self._subqueries(scope, known))
        for part in _conjuncts(tree):
            try:
                condition = reader.condition(part)
            except Refuse as met:
                self._note(met.refusal)
                continue
            scope.joined = _where(scope.relation, condition)

    # --- from ---

    def _from(self, tree: exp.Select, scope: _Scope, known: Mapping[str, _Known]) -> None:
        from_ = tree.args["from_"]
        only(from_)
        scope.joined = self._item(from_.this, scope, known)
        for join in tree.args.get("joins") or ():
            only(join, "kind", "side", "on", "using", "method")
            if isinstance(join.this, exp.Lateral):
                self._lateral(join, scope, known)
                continue
            if (
                join.args.get("method")
                or join.kind == "CROSS"
                or (not join.args.get("on") and not join.args.get("using"))
            ):
                refuse(
                    join,
                    "natural joins depend on later columns" if join.args.get("method") else
                    "a cross join pairs every row with every row",
                    "write `join ... on a = b`",
                )  # fmt: skip
            if join.side not in ("", "LEFT") or join.kind not in ("", "INNER", "OUTER"):
                refuse(join, f"{join.side or join.kind} joins aren't supported", "write it as a left join")
            right = self._item(join.this, scope, known)
            scope.joined = _joined(self._new, join, scope.relation, right, scope)

    def _item(self, tree: Tree, scope: _Scope, known: Mapping[str, _Known]) -> Relation:
        match tree:
            case exp.Table():
                only(tree, "db", "alias")
                if not isinstance(tree.this, exp.Identifier):
                    refuse(tree, "a function in `from` isn't supported", "name a captured table, such as a calendar")
                name = identifier_text(tree.this)
                relation = self._named(tree, name, known)
            case exp.Subquery():
                only(tree, "alias", "with_")
                if not tree.alias:
                    refuse(tree, "it has no name", "write `(select ...) as name`")
                name = identifier_text(tree.args["alias"].this)
                relation = self.read(tree.this, known)
            case _:
                refuse(tree, "only tables and subqueries can stand in `from`", "name a captured table")
        alias = tree.args.get("alias")
        if alias is not None:
            if alias.args.get("columns"):
                refuse(tree, "names of columns after an alias aren't supported", "name them in a select list")
            name = identifier_text(alias.this)
        if any(item.alias == name for item in scope.items):
            refuse(tree, f"{name!r} is there twice", "give one of them an alias")
        scope.items.append(_Item(name, relation.names, relation.hidden))
        return replace(relation, branches=(), hidden=frozenset())

    def _named(self, tree: exp.Table, name: str, known: Mapping[str, _Known]) -> Relation:
        schema = tree.args.get("db")
        if schema is None and name in known:
            expression = known[name]
            return self.read(expression.tree, expression.known)
        table = TableName("public" if schema is None else identifier_text(schema), name)
        shape = self._tables.get(table)
        if shape is None:
            refuse(
                tree, f"the table {table} isn't captured", "add it to `source.tables`, or write its schema before it"
            )
        if not shape.key:
            refuse(tree, f"the table {table} has no key", "give it a primary key, or set `append_only` for it")
        columns = {column.name: self._new(type_of(column)) for column in shape.columns}
        key = tuple(columns[column] for column in shape.key)
        ids = frozenset(column.id for column in key)
        for column in key:
            if not column.type.is_comparable:
                refuse(
                    tree,
                    f"its key is of type {column.type.name}, whose order isn't known here",
                    "use another key",
                )
        node = Scan(table, tuple(columns), tuple(columns.values()), key)
        everything = frozenset(column.id for column in columns.values())
        hidden = frozenset(OWN_COLUMNS) if is_append_only(shape) else frozenset[str]()
        return Relation(node, dict(columns), ((ids, everything),), ids, hidden=hidden)

    # --- subqueries that read columns of the query around them ---

    def _subqueries(self, scope: _Scope, known: Mapping[str, _Known]) -> Callable[[Tree], Expression]:
        """A function that joins subqueries inside expressions to the rows of the scope."""

        def joined(tree: Tree) -> Expression:
            inner = self._correlated(tree.this, scope, known)
            if isinstance(tree, exp.Exists):
                only(tree)
                return self._exists(tree, inner)
            only(tree)
            if len(tree.this.expressions) != 1:
                refuse(tree, "it gives more than one column", "select one expression")
            names = self._correlated_outputs(tree.this, inner, known, is_named=False)
            (value,) = names.values()
            return value

        return joined

    def _exists(self, tree: Tree, inner: "_Correlated") -> Expression:
        """Whether a subquery has rows, joined to the query around it."""
        _check_gives_rows(tree, inner.scope)
        rows = Aggregate("count", None, INT8)
        aggregates = {rows: self._new(INT8)} if inner.scope.relation.unchecked else {}
        grouped, reasons = _grouped_by_pairs(self._new, tree, inner, aggregates)
        _join_correlated(self._new, inner.outer, grouped, keeps_left=True)
        if not aggregates:
            return Call("not", (Call("is_null", (grouped.pairs[0][1],), BOOL),), BOOL)
        count = Call("coalesce", (aggregates[rows], Literal(0, INT8)), INT8)
        has_rows = Call(">", (count, Literal(0, INT8)), BOOL)
        return Call("or", (has_rows, Call("checked", (reasons[aggregates[rows]], Literal(False, BOOL)), BOOL)), BOOL)

    def _lateral(self, join: exp.Join, scope: _Scope, known: Mapping[str, _Known]) -> None:
        lateral = join.this
        only(lateral, "alias")
        on = join.args.get("on")
        if not (on is None or (isinstance(on, exp.Boolean) and on.this)) or join.args.get("using"):
            refuse(join, "a lateral join takes no condition here", "write `on true`, and the condition inside")
        if join.side not in ("", "LEFT") or not isinstance(lateral.this, exp.Subquery):
            refuse(join, "this isn't supported", "write `left join lateral (select ...) as name on true`")
        alias = lateral.args.get("alias")
        if alias is None or alias.args.get("columns"):
            refuse(join, "it has no name, or its columns have", "write `as name` after it")
        only(lateral.this)
        inner = self._correlated(lateral.this.this, scope, known)
        names = self._correlated_outputs(lateral.this.this, inner, known, is_named=True, keeps_left=join.side == "LEFT")
        name = identifier_text(alias.this)
        if any(item.alias == name for item in scope.items):
            refuse(join, f"{name!r} is there twice", "give one of them an alias")
        scope.items.append(_Item(name, names))

    def _correlated(self, tree: Tree, scope: _Scope, known: Mapping[str, _Known]) -> "_Correlated":
        """A subquery up to its ``where``, with the equalities that join it to the query around it."""
        if not isinstance(tree, exp.Select):
            refuse(tree, "this subquery isn't supported", "write `select ... from ... where a = b`")
        self._refuse_order(tree)
        only(tree, "expressions", "from_", "joins", "where", "order", "limit", "offset")
        if tree.args.get("from_") is None:
            refuse(tree, "it reads no table", "write `from`")
        inner = _Scope(outer=scope)
        self._from(tree, inner, known)
        pairs: list[tuple[Expression, Expression]] = []
        reader = ExpressionReader(inner.resolve, join_subquery=self._subqueries(inner, known))
        for part in _conjuncts(tree.args["where"].this) if tree.args.get("where") is not None else ():
            condition = reader.condition(part)
            if {ref.id for ref in refs(condition)} <= _ids(inner.relation.node.columns):
                inner.joined = _where(inner.relation, condition)
                continue
            pair = _equality(condition, scope.relation.node, inner.relation.node)
            if pair is None:
                refuse(part, "a subquery takes equalities with the query around it", "write `a = b`, or a join")
            pairs.append(pair)
        if not pairs:
            refuse(tree, "it has no equality with the query around it", "write `where a = b`, or a join")
        if any(can_fail(side) for _, side in pairs):
            inner.joined = settled(inner.relation)
        return _Correlated(inner, scope, tuple(pairs))

    def _correlated_outputs(
        self, tree: exp.Select, inner: "_Correlated", known: Mapping[str, _Known], *, is_named: bool,
        keeps_left: bool = True,
    ) -> dict[str, Expression]:  # fmt: skip
        """Join the subquery's rows. Returns its select list in terms of the query around it."""
        reader, aggregates = self._aggregating(inner.scope, known)
        if is_named:
            outputs = self._select_list(tree, inner.scope, reader)
        else:
            (part,) = tree.expressions
            made = reader.read(part.this if isinstance(part, exp.Alias) else part)
            outputs = {"": united(part, [made])[0] if made.type.kind is Kind.UNKNOWN else made}
        columns = _ids(inner.scope.relation.node.columns)
        if not all({ref.id for ref in aggregate_refs(made)} <= columns for made in aggregates):
            refuse(tree, "an aggregate can't read a column of the query around it", "compute with it outside")
        if aggregates:
            # One row for each row of the outer query, even if no row of the subquery belongs to it.
            own = {column.id for column in aggregates.values()}
            outputs = {name: _over_groups(made, {}, own, tree.sql("postgres")) for name, made in outputs.items()}
            grouped, reasons = _grouped_by_pairs(self._new, tree, inner, aggregates)
            _join_correlated(self._new, inner.outer, grouped, keeps_left=True)
            values: dict[Ref, Expression] = {}
            for aggregated, column in aggregates.items():
                if aggregated.function == "count":
                    values[column] = Call("coalesce", (column, Literal(0, INT8)), INT8)
                if column in reasons:
                    values[column] = Call("checked", (reasons[column], values.get(column, column)), column.type)
            return {
                name: rewritten(of, lambda part: values.get(part) if isinstance(part, Ref) else None)
                for name, of in outputs.items()
            }
        if not all({ref.id for ref in refs(made)} <= columns for made in outputs.values()):
            refuse(tree, "columns of the query around it can stand in its `where` only", "select them outside of it")
        relation = replace(inner.scope.relation, names=outputs)
        right = _with_columns(self._new, relation) if keeps_left else relation
        if is_named:
            _join_correlated(self._new, inner.outer, _Joinable(right, inner.pairs), keeps_left=keeps_left)
            return dict(right.names)
        if not _Joinable(right, inner.pairs).is_unique:
            refuse(tree, "it can give more than one row", "aggregate it, or ask for all of its table's key")
        failure: Ref | None = None
        if right.unchecked:
            right, failure = _with_failure(self._new, right)
        _join_correlated(self._new, inner.outer, _Joinable(right, inner.pairs), keeps_left=True)
        if failure is None:
            return dict(right.names)
        return {name: Call("checked", (failure, made), made.type) for name, made in right.names.items()}

    # --- the select list ---

    def _aggregating(self, scope: _Scope, known: Mapping[str, _Known]) -> tuple[ExpressionReader, dict[Aggregate, Ref]]:
        """A reader of expressions, and the aggregates that it comes across."""
        aggregates: dict[Aggregate, Ref] = {}

        def aggregate(made: Aggregate) -> Expression:
            return aggregates.setdefault(made, aggregates.get(made) or self._new(made.type))

        def settles(argument: Expression, order: Sequence[SortKey]) -> bool:
            return _settles(scope.relation, argument, [key.expression for key in order])

        return ExpressionReader(scope.resolve, aggregate, settles, self._subqueries(scope, known)), aggregates

    def _grouped_or_plain(self, tree: exp.Select, scope: _Scope, known: Mapping[str, _Known]) -> Relation:
        group_tree, having = tree.args.get("group"), tree.args.get("having")
        reader, aggregates = self._aggregating(scope, known)
        outputs = self._select_list(tree, scope, reader)
        if group_tree is None and not aggregates and having is None:
            return replace(scope.relation, names=outputs)
        if group_tree is None:
            refuse(tree, "an aggregate of a whole table has no key", "write `group by`")
        by = _group_by(group_tree, scope, outputs)
        mapped = {expression: self._new(expression.type) for expression in by}
        conditions = []
        for part in _conjuncts(having.this) if having is not None else ():
            conditions.append((reader.condition(part), part))
        relation = settled(scope.relation)
        own = {*(column.id for column in mapped.values()), *(column.id for column in aggregates.values())}
        names = {name: _over_groups(made, mapped, own, f"{name} in the select list") for name, made in outputs.items()}
        ids = frozenset(column.id for column in mapped.values())
        not_null = {mapped[expression].id for expression in mapped if relation.is_never_null(expression)}
        not_null |= {column.id for made, column in aggregates.items() if made.function == "count"}
        node = Group(
            relation.node,
            tuple((column, made) for made, column in mapped.items()),
            tuple((column, made) for made, column in aggregates.items()),
        )
        grouped = Relation(
            node,
            names,
            (
                (ids, frozenset(own)),
                *_lifted(relation, {made.id: column.id for made, column in mapped.items() if isinstance(made, Ref)}),
            ),
            frozenset(not_null),
        )
        for condition, part in conditions:
            over = _over_groups(condition, mapped, own, part.sql("postgres"))
            grouped = _where(grouped, over)
        return grouped

    def _select_list(self, tree: exp.Select, scope: _Scope, reader: ExpressionReader) -> dict[str, Expression]:
        outputs: dict[str, Expression] = {}
        for part in tree.expressions:
            try:
                for name, expression in _selected(part, scope, reader):
                    if name in outputs:
                        refuse(part, f"two columns of the result are called {name!r}", "give one of them an alias")
                    is_unknown = expression.type.kind is Kind.UNKNOWN
                    outputs[name] = united(part, [expression])[0] if is_unknown else expression
            except Refuse as met:
                self._note(met.refusal)
        return outputs

    # --- union ---

    def _union(self, tree: exp.Union, known: Mapping[str, _Known]) -> Relation:
        only(tree, "distinct", "with_", "order", "limit", "offset")
        sides = [settled(self.read(side, known)) for side in _sides(tree)]
        if len({len(side.names) for side in sides}) > 1:
            refuse(tree, "its parts have different numbers of columns", "select the same columns in each")
        columns = [united(tree, parts) for parts in zip(*(side.names.values() for side in sides), strict=True)]
        names = list(sides[0].names)
        values = tuple(self._new(common_type(pair)) for pair in columns)
        branches = tuple((side.node, tuple(pair[index] for pair in columns)) for index, side in enumerate(sides))
        identity = self._new(TEXT)
        known_branches = tuple(
            replace(side, names=dict(zip(names, expressions, strict=True)))
            for side, (_, expressions) in zip(sides, branches, strict=True)
        )
        everything = frozenset({identity.id, *(column.id for column in values)})
        not_null = {identity.id} | {
            column.id
            for column, pair in zip(values, columns, strict=True)
            if all(side.is_never_null(expression) for side, expression in zip(sides, pair, strict=True))
        }
        relation = Relation(
            Union(branches, values, identity),
            dict(zip(names, values, strict=True)),
            ((frozenset({identity.id}), everything),),
            frozenset(not_null),
            known_branches,
        )
        return _distinct(self._new, relation) if tree.args.get("distinct") else relation


def _joined(new: _New, join: exp.Join, left: Relation, right: Relation, scope: _Scope) -> Relation:
    keeps_left = join.side == "LEFT"
    if keeps_left:
        right = _materialised(new, right, scope)
    pairs: list[tuple[Expression, Expression]] = []
    others: list[Expression] = []
    for condition, part in _join_conditions(join, scope):
        if (pair := _equality(condition, left.node, right.node)) is not None:
            pairs.append(pair)
            continue
        ids = {ref.id for ref in refs(condition)}
        if (ids or keeps_left) and ids <= _ids(right.node.columns):
            right = _where(right, condition)
        elif keeps_left:
            refuse(
                part,
                "a left join takes equalities of both sides, and conditions on the right one",
                "move it to `where`, or into a subquery on the right",
            )
        elif not ids <= {*_ids(left.node.columns), *_ids(right.node.columns)}:
            refuse(part, "a join inside can't read a column of the query around it", "move it to the inner `where`")
        else:
            others.append(condition)
    if not pairs:
        refuse(join, "it has no equality between both sides", "join on `a = b`; further conditions may follow")
    if any(can_fail(side) for pair in pairs for side in pair):
        left, right = settled(left), right if keeps_left else settled(right)
    relation = _paired(new, left, right, pairs, keeps_left=keeps_left)
    for condition in others:
        relation = _where(relation, condition)
    return relation


def _paired(
    new: _New, left: Relation, right: Relation, pairs: Sequence[tuple[Expression, Expression]], *, keeps_left: bool
) -> Relation:
    """The rows of a join. Rows for which a condition of either side fails are checked after the join."""
    failure: Ref | None = None
    if keeps_left and right.unchecked:
        right, failure = _with_failure(new, right)
    left, right = narrowed(left), narrowed(right)
    left_on, right_on = zip(*pairs, strict=True)
    relation = _related(left, right, pairs, keeps_left=keeps_left)
    key = smallest_key(relation, left.node.key + right.node.key)
    unchecked = (*left.unchecked, *right.unchecked)
    if failure is not None:
        unchecked = (*unchecked, Call("checked", (failure, Literal(True, BOOL)), BOOL))
    node = Join(left.node, right.node, left_on, right_on, keeps_left, key)
    return replace(relation, node=node, unchecked=unchecked)


def _with_failure(new: _New, relation: Relation) -> tuple[Relation, Ref]:
    """The relation without rows that a condition rejects, and a column that says why a condition fails."""
    reason = new(TEXT)
    node = all_possible(relation.node, relation.unchecked)
    made = Call("failure", (all_of(relation.unchecked),), TEXT)
    columns = [(column, column) for column in node.columns]
    return replace(relation, node=Project(node, (*columns, (reason, made))), unchecked=()), reason


def _join_conditions(join: exp.Join, scope: _Scope) -> list[tuple[Expression, Tree]]:
    reader = ExpressionReader(scope.resolve)
    if (on := join.args.get("on")) is not None:
        return [(reader.condition(part), part) for part in _conjuncts(on)]
    conditions: list[tuple[Expression, Tree]] = []
    *earlier, last = scope.items
    for identifier in join.args["using"]:
        name = identifier_text(identifier)
        if name not in last.names:
            refuse(join, f"{last.alias!r} has no column {name!r}", "join on a column that both have")
        left = _Scope(earlier, scope.merged).resolve(exp.column(identifier))
        right = last.names[name]
        conditions.append((compared(join, "=", left, right), join))
        scope.merged[name] = _merged(join, left, right)
    return conditions


def _merged(join: exp.Join, left: Expression, right: Expression) -> Expression:
    """The column of ``using``, which has the type of both sides."""
    if left.type.kind is right.type.kind is Kind.CHAR:
        return left
    one, other = united(join, [left, right])
    # An inner join takes the right value if only that side's type has no scale.
    if join.side != "LEFT" and one.type.kind is Kind.NUMERIC and one.type.scale != other.type.scale:
        refuse(join, "equal numerics can look different", "join with `on`, and name the side that you want")
    return one


def _materialised(new: _New, relation: Relation, scope: _Scope) -> Relation:
    """A right side with a column for each name, so that all names are null where there is no row."""
    relation = _with_columns(new, relation)
    scope.items.append(_Item(scope.items.pop().alias, relation.names))
    return relation


def _with_columns(new: _New, relation: Relation) -> Relation:
    """The relation with a column of its rows for each name."""
    if all(isinstance(made, Ref) for made in relation.names.values()):
        return relation
    failing = {name: of for name, of in relation.names.items() if can_fail(of)}
    made = {
        name: (new(of.type), of)
        for name, of in relation.names.items()
        if not isinstance(of, Ref) and name not in failing
    }
    names: dict[str, Expression] = {name: made[name][0] if name in made else of for name, of in relation.names.items()}
    columns: list[tuple[Ref, Expression]] = [(column, column) for column in relation.node.columns]
    if failing:  # computed only where they are read, and only for rows that exist
        is_there = new(BOOL)
        columns.append((is_there, Literal(True, BOOL)))
        names |= {name: Call("case", (is_there, of, Literal(None, of.type)), of.type) for name, of in failing.items()}
    relation = narrowed(relation)
    node = Project(relation.node, (*columns, *made.values()))
    not_null = relation.not_null | {column.id for column, of in made.values() if relation.is_never_null(of)}
    return replace(relation, node=node, names=names, not_null=frozenset(not_null))


def _related(
    left: Relation,
    right: Relation,
    pairs: Sequence[tuple[Expression, Expression]],
    *,
    keeps_left: bool,
) -> Relation:
    if not keeps_left:
        equalities: list[Dependency] = []
        for one, other in (map(plain, pair) for pair in pairs):
            if _is_plain_column(one) and _is_plain_column(other):
                same = frozenset({one.id}), frozenset({other.id})
                equalities += [same, same[::-1]]
        equal = {side.id for pair in pairs for side in map(plain, pair) if isinstance(side, Ref)}
        return Relation(
            left.node,
            {},
            (*left.dependencies, *right.dependencies, *equalities),
            left.not_null | right.not_null | equal,
        )
    # Only the whole left side of the comparison determines whether there is a right row; a part of it doesn't.
    compared = [ref for side, _ in pairs for ref in refs(side)]
    of_right = frozenset(made.id for _, side in pairs if _is_plain_column(made := plain(side)))
    equalities = []
    if all(map(_is_plain_column, compared)):
        equalities = [(frozenset(ref.id for ref in compared), of_right)]
    # Without a right row, its columns are null. Only those dependencies still hold whose given columns include one that
    # is never null in a right row.
    kept = tuple(dependency for dependency in right.dependencies if dependency[0] & right.not_null)
    return Relation(left.node, {}, (*left.dependencies, *kept, *equalities), left.not_null)


def _check_gives_rows(tree: Tree, scope: _Scope) -> None:
    """Refuse anything that makes a subquery of ``exists`` return other rows than its ``from`` and ``where``."""

    def aggregate(_: Aggregate) -> Expression:
        refuse(tree, "an aggregate gives a row also of no rows", "select 1 instead")

    reader = ExpressionReader(scope.resolve, aggregate)
    for part in tree.this.expressions:
        if not (isinstance(part, exp.Star) or (isinstance(part, exp.Column) and isinstance(part.this, exp.Star))):
            reader.read(part.this if isinstance(part, exp.Alias) else part)


def _grouped_by_pairs(
    new: _New, tree: Tree, inner: "_Correlated", aggregates: Mapping[Aggregate, Ref]
) -> tuple["_Joinable", dict[Ref, Ref]]:
    """The subquery's rows, grouped by the values that join them, and for each aggregate that can fail a column with the
    reason. The reason isn't raised here, because the outer query may not read the group.
    """
    by = list(dict.fromkeys(side for _, side in inner.pairs))
    for side in by:
        if not side.type.has_one_form:
            refuse(tree, "equal numerics can look different", "cast both sides to numeric(precision,scale)")
    mapped = {side: new(side.type) for side in by}
    ids = frozenset(column.id for column in mapped.values())
    of = inner.scope.relation
    made: list[tuple[Ref, Aggregate]] = []
    reasons: dict[Ref, Ref] = {}
    for aggregate, column in aggregates.items():
        lenient, failure = _without_failure(aggregate, of.unchecked)
        made.append((column, lenient))
        if failure is not None:
            reasons[column] = new(TEXT)
            made.append((reasons[column], Aggregate("max", failure, TEXT)))
    node = Group(
        all_possible(of.node, of.unchecked), tuple((column, side) for side, column in mapped.items()), tuple(made)
    )
    relation = Relation(node, {}, ((ids, frozenset(_ids(node.columns))),), frozenset())
    return _Joinable(relation, tuple((outside, mapped[side]) for outside, side in inner.pairs)), reasons


def _join_correlated(new: _New, scope: _Scope, right: "_Joinable", *, keeps_left: bool) -> None:
    left = scope.relation
    if any(can_fail(outside) for outside, _ in right.pairs):
        left = settled(left)
    if right.is_unique:
        outside = frozenset(ref.id for side, _ in right.pairs for ref in refs(side))
        there = frozenset(_ids(right.relation.node.columns))
        left = replace(left, dependencies=(*left.dependencies, (outside, there)))
    scope.joined = _paired(new, left, right.relation, right.pairs, keeps_left=keeps_left)


def _lifted(relation: Relation, columns: Mapping[int, int]) -> list[Dependency]:
    """How the columns of a group determine each other."""
    several = [given for given, _ in relation.dependencies if len(given) > 1 and given <= columns.keys()]
    return [
        (
            frozenset(columns[inner] for inner in given),
            frozenset(columns[other] for other in relation.closure(given) if other in columns),
        )
        for given in [*(frozenset({inner}) for inner in columns), *several]
    ]


def _settles(relation: Relation, argument: Expression, order: Sequence[Expression]) -> bool:
    """Whether rows that are equal in the order have the same argument."""
    if argument in order and argument.type.has_one_form:
        return True
    known = relation.closure({key.id for key in order if isinstance(key, Ref) and key.type.has_one_form})
    return {ref.id for ref in refs(argument)} <= known and bool(known)


def _over_groups(expression: Expression, mapped: Mapping[Expression, Ref], own: set[int], clause: str) -> Expression:
    over = rewritten(expression, mapped.get)
    if not {ref.id for ref in refs(over)} <= own:
        refuse(clause, "it reads a column that isn't in `group by`", "add the column to `group by`, or aggregate it")
    return over


def _group_by(tree: exp.Group, scope: _Scope, outputs: Mapping[str, Expression]) -> list[Expression]:
    only(tree, "expressions")
    by: list[Expression] = []
    reader = ExpressionReader(scope.resolve)
    for part in tree.expressions:
        if isinstance(part, exp.Literal) and not part.is_string and str(part.this).isdecimal():
            place = int(part.this) - 1
            if not 0 <= place < len(outputs):
                refuse(part, "the select list has no such position", "write the expression")
            expression = list(outputs.values())[place]
        else:
            expression = _group_expression(part, reader, scope, outputs)
        if not expression.type.is_comparable:
            refuse(part, f"equality of {expression.type.name} isn't known here", "cast it to text if it is an enum")
        if not expression.type.has_one_form:
            refuse(
                part,
                "equal numerics can look different",
                "cast it to numeric(precision,scale)",
            )
        if expression not in by:
            by.append(expression)
    return by


def _group_expression(
    part: Tree, reader: ExpressionReader, scope: _Scope, outputs: Mapping[str, Expression]
) -> Expression:
    if isinstance(part, exp.Column) and not part.table:
        name = identifier_text(part.this)
        if not any(name in item.names for item in scope.items) and name in outputs:
            return outputs[name]
    return reader.read(part)


def _selected(part: Tree, scope: _Scope, reader: ExpressionReader) -> list[tuple[str, Expression]]:
    if isinstance(part, exp.Star) or (isinstance(part, exp.Column) and isinstance(part.this, exp.Star)):
        if part.args.get("except_") or part.args.get("replace") or scope.merged:
            refuse(part, "`*` isn't supported here", "name the columns")
        alias = "" if isinstance(part, exp.Star) else identifier_text(part.args["table"])
        items = [item for item in scope.items if not alias or item.alias == alias]
        if not items:
            refuse(part, f"there is no {alias!r} in `from`", "name a table or alias of this query")
        return [pair for item in items for pair in item.names.items() if pair[0] not in item.hidden]
    match part:
        case exp.Alias():
            return [(identifier_text(part.args["alias"]), reader.read(part.this))]
        case exp.Column():
            return [(identifier_text(part.this), reader.read(part))]
    reader.read(part)
    raise refused(part, "it has no name of its own", "write `as name` after it")


def _distinct(new: _New, relation: Relation) -> Relation:
    relation = settled(relation)
    for name, expression in relation.names.items():
        if not expression.type.is_comparable:
            refuse(
                f"distinct {name}",
                f"equality of {expression.type.name} isn't known here",
                "cast it to text, or group",
            )
        if not expression.type.has_one_form:
            refuse(f"distinct {name}", "equal numerics can look different", "cast it to numeric(precision,scale)")
    by = {name: (new(expression.type), expression) for name, expression in relation.names.items()}
    ids = frozenset(column.id for column, _ in by.values())
    inner = {made.id: column.id for column, made in by.values() if isinstance(made, Ref)}
    return Relation(
        Group(relation.node, tuple(by.values()), ()),
        {name: column for name, (column, _) in by.items()},
        ((ids, ids), *_lifted(relation, inner)),
        frozenset(column.id for column, made in by.values() if relation.is_never_null(made)),
    )


def _sides(tree: exp.Union) -> list[Tree]:
    """The parts of a union and of its nested unions of the same kind."""
    sides: list[Tree] = []
    for side in (tree.this, tree.expression):
        is_same = type(side) is exp.Union and bool(side.args.get("distinct")) == bool(tree.args.get("distinct"))
        has_more = any(side.args.get(name) for name in ("with_", "order", "limit", "offset"))
        sides += _sides(side) if is_same and not has_more else [side]
    return sides


def _conjuncts(tree: Tree) -> list[Tree]:
    while isinstance(tree, exp.Paren):
        tree = tree.this
    return [*_conjuncts(tree.this), *_conjuncts(tree.expression)] if isinstance(tree, exp.And) else [tree]


def _ids(columns: Sequence[Ref]) -> set[int]:
    return {column.id for column in columns}


def _is_plain_column(expression: Expression) -> TypeGuard[Ref]:
    """Whether it is a column whose equal values have the same form."""
    return isinstance(expression, Ref) and expression.type.has_one_form


def _equality(condition: Expression, left: Node, right: Node) -> tuple[Expression, Expression] | None:
    if not (isinstance(condition, Call) and condition.name == "="):
        return None
    one, other = condition.arguments
    one_ids, other_ids = ({ref.id for ref in refs(side)} for side in (one, other))
    if not one_ids or not other_ids:
        return None
    left_ids, right_ids = _ids(left.columns), _ids(right.columns)
    if one_ids <= left_ids and other_ids <= right_ids:
        return one, other
    if one_ids <= right_ids and other_ids <= left_ids:
        return other, one
    return None


def _where(relation: Relation, condition: Expression) -> Relation:
    """The relation's rows for which the condition is true, and what more is known of them."""
    if can_fail(condition):
        return replace(
            relation,
            node=_pushed(relation.node, Call("possible", (condition,), BOOL)),
            unchecked=(*relation.unchecked, condition),
        )
    dependencies = relation.dependencies
    match condition:
        case Call("=", (Ref() as column, Literal())) | Call("=", (Literal(), Ref() as column)):
            # The column has one value in all rows: the rest of the key is a key.
            rest = frozenset(_ids(relation.node.key)) - {column.id}
            dependencies = (*dependencies, (frozenset(), frozenset({column.id})))
            if rest:
                dependencies = (*dependencies, (rest, frozenset(_ids(relation.node.columns))))
    return replace(
        relation,
        node=with_condition(relation.node, condition),
        dependencies=dependencies,
        not_null=never_null_after(condition, relation.not_null),
    )


def _pushed(node: Node, condition: Expression) -> Node:
    """Filters one side of a join early, if the condition reads only that side. The node may still have other rows."""
    ids = {ref.id for ref in refs(condition)}
    match node:
        case Filter():
            return replace(node, source=_pushed(node.source, condition))
        case Join() if ids and ids <= _ids(node.left.columns):
            return replace(node, left=with_condition(node.left, condition))
        case Join() if ids and ids <= _ids(node.right.columns) and not node.keeps_left:
            return replace(node, right=with_condition(node.right, condition))
    return node


def _without_failure(aggregate: Aggregate, unchecked: Sequence[Expression]) -> tuple[Aggregate, Expression | None]:
    """The aggregate of rows for which nothing fails, and why something fails for a row; None if nothing can fail. Rows
    that conditions reject don't count, including the conditions in ``unchecked``.
    """
    conditions = [*unchecked, *([] if aggregate.condition is None else [aggregate.condition])]
    values = [key.expression for key in aggregate.order]
    values += [] if aggregate.argument is None else [aggregate.argument]
    if not any(map(can_fail, (*conditions, *values))):
        return aggregate, None
    condition = all_of(conditions) if conditions else Literal(True, BOOL)
    lenient = replace(
        aggregate,
        argument=None if aggregate.argument is None else _attempt(aggregate.argument),
        condition=_attempt(condition) if conditions else None,
        order=tuple(replace(key, expression=_attempt(key.expression)) for key in aggregate.order),
    )
    return lenient, Call("failure", (condition, *values), TEXT)


def _attempt(expression: Expression) -> Expression:
    return Call("attempt", (expression,), expression.type) if can_fail(expression) else expression
