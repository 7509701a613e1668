"""The result of a plan as a table, for which a sink is prepared. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from cdc.model.append_only import stored_tables
from cdc.model.table import Column, ReplicaIdentity, Table, TableName
from views.expressions import Aggregate, Expression, Ref
from views.plan import Group, Project, Scan, Union, ViewPlan, nodes
from views.values import Kind, SqlType

_OIDS: Final = {
    Kind.BOOL: 16, Kind.INT2: 21, Kind.INT4: 23, Kind.INT8: 20, Kind.NUMERIC: 1700, Kind.TEXT: 25, Kind.DATE: 1082,
    Kind.TIMESTAMP: 1114, Kind.TIMESTAMPTZ: 1184, Kind.UUID: 2950,
}  # fmt: skip
_ARRAY_OIDS: Final = {
    Kind.BOOL: 1000, Kind.INT2: 1005, Kind.INT4: 1007, Kind.INT8: 1016, Kind.NUMERIC: 1231, Kind.TEXT: 1009,
    Kind.DATE: 1182, Kind.TIMESTAMP: 1115, Kind.TIMESTAMPTZ: 1185, Kind.UUID: 2951, Kind.CHAR: 1014,
}  # fmt: skip
_JSONB_OID: Final = 3802
_CHAR_OID: Final = 1042
_HEADER: Final = 4
"""A type modifier is this much greater than the length."""
_SAME_TYPE: Final = ("min", "max")


def result_table(plan: ViewPlan, tables: Mapping[TableName, Table], name: TableName) -> Table:
    """The result under this name. A column that comes from a table's column has its type, precision included. Raises
    KeyError when a table or column of the plan isn't among the shapes.
    """
    origins = _Origins(plan, stored_tables(tables))
    columns = tuple(origins.column(column, made) for column, made in plan.outputs)
    return Table(name, columns, plan.key, ReplicaIdentity.DEFAULT)


class _Origins:
    def __init__(self, plan: ViewPlan, tables: Mapping[TableName, Table]) -> None:
        self._columns: dict[int, Column] = {}
        self._made: dict[int, list[Expression | Aggregate]] = {}
        for node in nodes(plan.root):
            match node:
                case Scan():
                    for column, ref in zip(node.names, node.columns, strict=True):
                        self._columns[ref.id] = tables[node.table].column(column)
                case Project():
                    for ref, made in node.expressions:
                        self._made[ref.id] = [made]
                case Union():
                    for place, ref in enumerate(node.values):
                        self._made[ref.id] = [expressions[place] for _, expressions in node.branches]
                case Group():
                    self._made |= {ref.id: [made] for ref, made in node.by}
                    self._made |= {ref.id: [aggregate] for ref, aggregate in node.aggregates}

    def column(self, name: str, made: Expression) -> Column:
        origin = self._origin(made)
        return _column_of(name, made.type) if origin is None else replace(origin, name=name, number=0)

    def _origin(self, made: Expression | Aggregate) -> Column | None:
        """The table's column with these values; None for computed values, or values from columns of several types."""
        match made:
            case Ref():
                if (column := self._columns.get(made.id)) is not None:
                    return replace(column, name="", number=0)
                origins = [self._origin(one) for one in self._made.get(made.id, ())]
                return origins[0] if origins and all(origin == origins[0] for origin in origins) else None
            case Aggregate(function="array_agg", argument=argument) if argument is not None:
                return self._array_of(argument)
            case Aggregate(argument=argument) if made.function in _SAME_TYPE and argument is not None:
                return self._origin(argument)
            case _:
                return None

    def _array_of(self, argument: Expression) -> Column | None:
        """An array of the argument's type. PostgreSQL has separate OIDs for arrays."""
        element = self.column("", argument)
        oid = _ARRAY_OIDS.get(argument.type.kind)
        return None if oid is None else replace(element, is_array=True, type_oid=oid)


def _column_of(name: str, of: SqlType) -> Column:
    if of.kind in _OIDS:
        return Column(name, of.kind.value, of.kind.value, False, _OIDS[of.kind], -1)
    if of.kind is Kind.CHAR:
        return Column(name, of.name, "bpchar", False, _CHAR_OID, (of.scale or 0) + _HEADER)
    if of.name == "jsonb":
        return Column(name, "jsonb", "jsonb", False, _JSONB_OID, -1)
    return Column(name, of.name, "text", False, _OIDS[Kind.TEXT], -1)
