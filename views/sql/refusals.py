"""Refusals of one query, gathered while it is read, so that all are told at once."""

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
    """A part of the query as it is shown: one line, not too long."""
    text = tree if isinstance(tree, str) else tree.sql(dialect="postgres")
    text = " ".join(text.split())
    return text if len(text) <= CLAUSE_LENGTH_MAX else text[: CLAUSE_LENGTH_MAX - 3] + "..."


def refuse(tree: Tree | str, reason: str, remedy: str) -> NoReturn:
    """Raise Refuse for this part of the query."""
    raise refused(tree, reason, remedy)


def refused(tree: Tree | str, reason: str, remedy: str) -> Refuse:
    """The refusal of this part of the query, to be raised."""
    return Refuse(Refusal(clause_of(tree), reason, remedy))


def only(tree: Tree, *known: str) -> None:
    """Refuse a part that has more to it than the arguments that are known here."""
    for name, value in tree.args.items():
        if value and name not in known and name not in ("this", "expression", "_type"):
            refuse(tree, f"{name.rstrip('_').replace('_', ' ')!r} isn't supported here", "leave it out")
