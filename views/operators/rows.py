"""Operators without state: filter, project, union."""

from collections.abc import Callable, Sequence

import orjson

from views.evaluation import compiled_all, compiled_condition
from views.operators.building import Building
from views.operators.changes import Changes, Rows, Work, add
from views.plan import Filter, Project, Union
from views.values import Row


class FilterOperator:
    def __init__(self, node: Filter) -> None:
        self._condition = compiled_condition(node.condition, node.source.columns)

    def changed(self, source: int, changes: Changes, work: Work) -> Changes:
        condition = self._condition
        return {row: weight for row, weight in changes.items() if condition(row)}

    def built(self, sources: Sequence[Rows], building: Building) -> Rows:
        condition = self._condition
        for rows in sources[0]:
            yield [row for row in rows if condition(row)]


class ProjectOperator:
    """Computed columns. They include the source's key, so different rows stay different."""

    def __init__(self, node: Project) -> None:
        self._project = compiled_all([made for _, made in node.expressions], node.source.columns)

    def changed(self, source: int, changes: Changes, work: Work) -> Changes:
        project = self._project
        projected: Changes = {}
        for row, weight in changes.items():
            add(projected, project(row), weight)
        return projected

    def built(self, sources: Sequence[Rows], building: Building) -> Rows:
        project = self._project
        for rows in sources[0]:
            yield [project(row) for row in rows]


class UnionOperator:
    """The rows of all branches, each with its branch's number and its key there."""

    def __init__(self, node: Union) -> None:
        self._branches = [
            (compiled_all(values, branch.columns), compiled_all(branch.key, branch.columns))
            for branch, values in node.branches
        ]

    def changed(self, source: int, changes: Changes, work: Work) -> Changes:
        values, key = self._branches[source]
        united: Changes = {}
        for row, weight in changes.items():
            add(united, (*values(row), _identity(source, key, row)), weight)
        return united

    def built(self, sources: Sequence[Rows], building: Building) -> Rows:
        for branch, ((values, key), source) in enumerate(zip(self._branches, sources, strict=True)):
            for rows in source:
                yield [(*values(row), _identity(branch, key, row)) for row in rows]


def _identity(branch: int, key: Callable[[Row], Row], row: Row) -> str:
    return orjson.dumps((branch, *key(row))).decode()
