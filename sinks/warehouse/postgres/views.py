"""The views that show the live generation to readers, replaced while they are read.

A switch replaces all views in one transaction, with their grants: a reader sees the old generation or the new one,
never neither. It locks all views before it changes them, and never waits for one while it holds another. So a reader
that uses several in one transaction is never the victim of a deadlock. While something reads for longer than
``lock_timeout_s``, the switch raises ``Unavailable``, and nothing has changed.

PostgreSQL has two limits here. A prepared ``select *`` fails once when the new generation has other columns ("cached
plan must not change result type"; name the columns). A transaction at REPEATABLE READ that began before the new
generation's rows were written doesn't see them.
"""

import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdc.model.errors import LockstepError
from cdc.model.table import quote_identifier
from sinks.warehouse.names import qualified
from sinks.warehouse.postgres.connection import WarehouseConnection
from sinks.warehouse.postgres.errors import INVALID_TABLE_DEFINITION, LOCK_NOT_AVAILABLE, state_of
from sinks.warehouse.reader_views import ViewDefinition

# Readers of a view wait while we wait for its lock, so waits are short. While we hold other locks, they are much
# shorter than deadlock_timeout (1 s).
_FIRST_LOCK_MS: Final = 500
_SECOND_LOCK_MS: Final = 10


@dataclass(frozen=True, slots=True)
class View:
    relation: str
    name: str
    owner: str
    options: tuple[str, ...]
    columns: tuple[str, ...]
    generations: frozenset[int]


class WarehouseViews:
    """The views of one sink, in the schema ``schema``. Every method is called inside a transaction.

    Relations are names without their schema, as in the catalogue. They come with what they show, for error messages.
    """

    def __init__(self, connection: WarehouseConnection, schema: str, generation: int) -> None:
        self._connection = connection
        self._schema = schema
        self._generation = generation
        self._generation_schema = re.compile(re.escape(schema) + r"_g(?P<generation>\d+)")

    def marks(self) -> str | None:
        # Checking all views of 2,000 tables takes the server 145 ms, and this query 7. A changed row has another xmin.
        query = (
            "select concat((select md5(string_agg(xmin::text, ' ' order by ctid)) "
            "from lockstep.prepared_table where view_schema = :view_schema), "
            "(select md5(string_agg(concat(c.xmin, ' ', r.xmin), ' ' order by c.oid, r.oid)) "
            "from pg_namespace n join pg_class c on c.relnamespace = n.oid "
            "left join pg_rewrite r on r.ev_class = c.oid "
            "where n.nspname = :view_schema))"
        )
        return str(self._connection.execute(query).scalar())

    def held(self, relations: Mapping[str, str]) -> list[View]:
        rows: Iterable[Any] = self._connection.execute(
            "select c.relname, c.relkind::text, pg_get_userbyid(c.relowner), coalesce(c.reloptions, '{}'), "
            "array(select a.attname::text from pg_attribute a "
            "where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum), "
            "array(select distinct tn.nspname::text from pg_rewrite r "
            "join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid "
            "and d.refclassid = 'pg_class'::regclass and d.refobjid <> c.oid "
            "join pg_class t on t.oid = d.refobjid join pg_namespace tn on tn.oid = t.relnamespace where r.ev_class = "
            "c.oid) "
            "from pg_class c join pg_namespace n on n.oid = c.relnamespace "
            "where n.nspname = :view_schema and c.relname = any(:names) order by c.relname",
            names=list(relations),
        )
        views = []
        for relation, kind, owner, options, columns, schemas in rows:
            name = qualified(self._schema, relation)
            ours = [self._generation_schema.fullmatch(schema) for schema in schemas]
            generations = frozenset(int(match["generation"]) for match in ours if match is not None)
            if kind != "v" or not ours or None in ours:
                what = "a view of something else" if kind == "v" else "no view"
                raise LockstepError(
                    f"{name}, the view by which readers find this sink's {relations[relation]}, is {what} now",
                    hint="it was replaced by hand: rename or remove what is there, then try again; nothing was changed",
                )
            views.append(View(relation, name, owner, tuple(options), tuple(columns), generations))
        return views

    def expose(self, wanted: Mapping[str, ViewDefinition], known: Mapping[str, str]) -> None:
        held = {view.relation: view for view in self.held(known)}
        gone = [view for relation, view in held.items() if relation not in wanted]
        made = {
            relation: definition
            for relation, definition in wanted.items()
            if not self._shows(held.get(relation), definition)
        }
        self._hold([*gone, *(held[relation] for relation in made if relation in held)])
        for view in gone:
            self._connection.run(f"drop view {view.name}")
        self._connection.run_all(
            [
                f"create or replace view {qualified(self._schema, relation)} as {definition.query}"
                for relation, definition in sorted(made.items())
                if relation not in held
            ]
        )
        for relation, view in held.items():
            if relation in made:
                self._replace(view, made[relation])

    def rename_columns(self, relations: Mapping[str, str], renamed: Mapping[str, str]) -> None:
        for view in self.held(relations):
            for old, new in renamed.items():
                if old in view.columns:
                    self._connection.run(
                        f"alter view {view.name} rename column {quote_identifier(old)} to {quote_identifier(new)}"
                    )

    def hold(self, relations: Mapping[str, str]) -> None:
        self._hold(self.held(relations))

    def _hold(self, views: Sequence[View]) -> None:
        """Lock these views against readers until the transaction ends. Raises Unavailable if reads take too long.

        A reader that waits for one of these views while it holds another would deadlock with us, and after
        ``deadlock_timeout`` the server ends one of both. So only the first lock is waited for long. If another view is
        held, all locks are released at once, and that view is the first of the next attempt.
        """
        deadline = time.monotonic() + self._connection.lock_timeout_ms / 1000
        pending = list(views)
        while pending:
            blocked = self._try_to_hold(pending, deadline)
            if blocked is None:
                break
            pending = [blocked, *(view for view in pending if view is not blocked)]
        self._connection.run(f"set local lock_timeout = {self._connection.lock_timeout_ms}")

    def _try_to_hold(self, views: Sequence[View], deadline: float) -> View | None:
        """Lock all or none. Returns the view that something else holds, or raises Unavailable after the deadline."""
        savepoint = self._connection.connected.begin_nested()
        for number, view in enumerate(views):
            wait_ms = _SECOND_LOCK_MS if number else min(_FIRST_LOCK_MS, self._connection.lock_timeout_ms)
            try:
                # Changes nothing. LOCK TABLE would also lock the tables that the view reads, and wait for whole
                # batches.
                self._connection.run(
                    f"set local lock_timeout = {wait_ms}; "
                    f"alter view if exists {view.name} owner to {quote_identifier(view.owner)}"
                )
            except self._connection.driver_errors() as error:
                savepoint.rollback()
                if state_of(error) != LOCK_NOT_AVAILABLE or time.monotonic() >= deadline:
                    raise
                return view
        savepoint.commit()
        return None

    def _replace(self, old: View, definition: ViewDefinition) -> None:
        options = f" with ({', '.join(old.options)})" if old.options else ""
        savepoint = self._connection.connected.begin_nested()
        try:
            self._connection.run(f"create or replace view {old.name}{options} as {definition.query}")
        except self._connection.driver_errors() as error:
            savepoint.rollback()
            if state_of(error) != INVALID_TABLE_DEFINITION:
                raise
            # A view whose columns have another order or type can't be replaced in place.
            grants = self._grants(old.relation, definition.columns)
            self._connection.run(f"drop view {old.name}")
            self._connection.run(f"create view {old.name}{options} as {definition.query}")
            for grant in grants:
                self._connection.run(grant)
        else:
            savepoint.commit()

    def _shows(self, view: View | None, definition: ViewDefinition) -> bool:
        return view is not None and view.generations == {self._generation} and view.columns == definition.columns

    def _grants(self, relation: str, stay: Collection[str]) -> list[str]:
        """Statements that grant others' rights on a view and on those of its columns that stay."""
        rows: Iterable[Any] = self._connection.execute(
            "with view as (select c.oid, c.relowner, c.relacl from pg_class c join pg_namespace n on n.oid = "
            "c.relnamespace "
            "where n.nspname = :view_schema and c.relname = :name), "
            "acl as (select null::text as column_name, relowner, (aclexplode(relacl)).* from view "
            "union all select a.attname::text, relowner, (aclexplode(a.attacl)).* from view join pg_attribute a "
            "on a.attrelid = view.oid and a.attnum > 0 and not a.attisdropped) "
            "select column_name, privilege_type, is_grantable, case grantee when 0 then null else "
            "pg_get_userbyid(grantee) end "
            "from acl where grantee <> relowner",
            name=relation,
        )
        return [
            f"grant {privilege}{'' if of_column is None else f' ({quote_identifier(of_column)})'} on "
            f"{qualified(self._schema, relation)} "
            "to "
            f"{'public' if grantee is None else quote_identifier(grantee)}{' with grant option' if may_grant else ''}"
            for of_column, privilege, may_grant, grantee in rows
            if of_column is None or of_column in stay
        ]
