"""Refusals of one query, collected while it is read, so that all are reported at once."""

from typing import NoReturn

from sqlglot.expressions import Expr as Tree

from views.failures import Refusal

CLAUSE_LENGTH_MAX = 120


class Refuse(Exception):
    """A part of the query is refused; reading goes on with the next part."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def clause_of(tree: Tree | str) -> str:
    """A part of the query for messages: one line, not too long."""
    text = tree if isinstance(tree, str) else tree.sql(dialect="postgres")
    text = " ".join(text.split())
    return text if len(text) <= CLAUSE_LENGTH_MAX else text[: CLAUSE_LENGTH_MAX - 3] + "..."


def refuse(tree: Tree | str, reason: str, remedy: str) -> NoReturn:
    raise refused(tree, reason, remedy)


def refused(tree: Tree | str, reason: str, remedy: str) -> Refuse:
    return Refuse(Refusal(clause_of(tree), reason, remedy))


def only(tree: Tree, *known: str) -> None:
    """Refuse a part that has arguments other than these."""
    for name, value in tree.args.items():
        if value and name not in known and name not in ("this", "expression", "_type"):
            refuse(tree, f"{name.rstrip('_').replace('_', ' ')!r} isn't supported here", "leave it out")
