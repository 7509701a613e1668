"""Which tables a query names, before their shapes are known."""

from collections.abc import Iterator
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.expressions import Expr as Tree

from cdc.model.table import TableName
from views.failures import Refusal, Refused

_DEPTH_MAX: Final = 150
"""Plans of deeper trees can't be read or sent to other processes: each level takes some of Python's stack."""


def parsed(sql: str) -> list[Tree]:
    """sqlglot's trees of the statements in a text. Raises ValueError with the reason if it can't be read."""
    try:
        trees = [tree for tree in sqlglot.parse(sql, dialect="postgres") if tree is not None]
    except SqlglotError as error:
        raise ValueError(str(error).splitlines()[0].split("\x1b")[0].rstrip(" .")) from None
    except RecursionError:
        raise _too_deep() from None
    level, depth = list(trees), 0
    while level:
        level, depth = [part for tree in level for part in tree.iter_expressions()], depth + 1
        if depth > _DEPTH_MAX:
            raise _too_deep()
    return trees


def _too_deep() -> ValueError:
    return ValueError("it is nested too deeply; many comparisons can be `in (...)`")


def query_tree(sql: str) -> Tree:
    """sqlglot's tree of one query. Raises Refused if the text can't be parsed or isn't one statement."""
    try:
        trees = [tree for tree in parsed(sql) if not isinstance(tree, exp.Semicolon)]
    except ValueError as error:
        raise Refused([Refusal("sql", f"it can't be parsed: {error}", "try it in psql")]) from None
    if len(trees) != 1:
        raise Refused([Refusal("sql", f"it has {len(trees)} statements", "write one query")])
    return trees[0]


_TYPES: Final = frozenset(
    {
        "bigint", "bool", "boolean", "char", "character", "date", "decimal", "float", "float4", "float8", "int", "int2",
        "int4", "int8", "integer", "interval", "json", "jsonb", "numeric", "precision", "real", "smallint", "text",
        "time", "timestamp", "timestamptz", "timetz", "uuid", "varchar", "zone", ")",
    }
)  # fmt: skip
"""The last words of types that may stand before a literal."""


def misread(sql: str) -> list[Refusal]:
    """Parts of a query that sqlglot parses differently from PostgreSQL, or without a difference that matters."""
    tokens = sqlglot.tokenize(sql, read="postgres")
    refusals: list[Refusal] = []
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if before.text.lower() in _TYPES and token.token_type is sqlglot.TokenType.STRING and after.text == "::":
            clause = f"{before.text} '{token.text}'::"
            refusals.append(Refusal(clause, "a type stands before the literal and after it", "put the first of the two"
                                    " casts in parentheses: `('...'::date)::text`"))  # fmt: skip
        is_call = before.text.lower() == "date_trunc" and token.text == "("
        if is_call and after.token_type is not sqlglot.TokenType.STRING:
            reason, remedy = "its unit isn't a literal", "write the unit in quotes, such as 'day'"
            refusals.append(Refusal(f"date_trunc({after.text}", reason, remedy))
    return refusals


def tables_read(sql: str) -> tuple[TableName, ...]:
    """The tables that a query reads, each once, sorted by name. A table without a schema is in ``public``. Raises
    Refused as ``query_tree``. ``read_view`` reports all other reasons against the query.
    """
    named = tables_in(query_tree(sql))
    if not named:
        raise Refused([Refusal("sql", "it reads no table", "write `from`")])
    return tuple(sorted(named))


def tables_in(tree: Tree) -> set[TableName]:
    return {name for table in tree.find_all(exp.Table) for name in _names(table)}


def _names(table: exp.Table) -> Iterator[TableName]:
    if not isinstance(table.this, exp.Identifier):
        return  # a function in `from`, which is refused elsewhere
    schema, name = table.args.get("db"), identifier_text(table.this)
    if schema is not None:
        yield TableName(identifier_text(schema), name)
    elif not is_part_of_with(table, name):
        yield TableName("public", name)


def is_part_of_with(table: exp.Table, name: str) -> bool:
    """Whether the name belongs to a part of a ``with`` around the table. A part sees only the parts before it."""
    below: Tree = table
    above = table.parent
    while above is not None:
        parts: list[Tree] = []
        if isinstance(above, exp.With):
            parts = list(above.expressions[: above.expressions.index(below)])
        elif not isinstance(below, exp.With) and (with_ := above.args.get("with_")) is not None:
            parts = list(with_.expressions)
        if any(identifier_text(part.args["alias"].this) == name for part in parts):
            return True
        below, above = above, above.parent
    return False


def identifier_text(identifier: Tree) -> str:
    """An identifier's name; without quotes it is in lower case."""
    return identifier.name if identifier.args.get("quoted") else identifier.name.lower()
