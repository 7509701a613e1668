"""Random changes of types, keys, tables and publications, which are undone at once, later or never."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.random_tables import TABLES, TWIN, Picks, Publication


@dataclass(frozen=True)
class Detour:
    """A change, what is written to its table meanwhile, and the way back."""

    there: str
    meanwhile: str
    back: str


class Detours:
    """Makes statements. ``names`` are the names under which each table may be found."""

    def __init__(self, picks: Picks, publication: Publication) -> None:
        self._picks = picks
        self._publication = publication
        self._back: list[str] = []
        self.names: dict[str, list[str]] = {table: [f"public.{table}", f"away.{table}"] for table in TABLES}

    def makes(self) -> list[tuple[Callable[[], str], int]]:
        """Each maker of statements, with its weight."""
        return [(self._type, 2), (self._key, 2), (self._detour, 5), (self._way_back, 3), (self._replace, 1)]

    def _type(self) -> str:
        label, other = self._picks.label(), f"l{100 + self._picks.number()}"
        attribute = f"z{self._picks.number()}"
        return self._picks.one_of(
            [
                f"alter type label rename value '{label}' to '{other}'",
                f"alter type label add value '{other}' before '{label}'",
                f"alter type pair add attribute {attribute} int",
                f"alter type pair rename attribute x to {attribute}; alter type pair rename attribute {attribute} to x",
            ]
        )

    def _key(self) -> str:
        first, second, third = (self._picks.column(number) for number in (1, 2, 3))
        columns = self._picks.one_of([first, second, f"{first}, {third}", f"{second}, {first}"])
        how = self._picks.one_of(["", "", "deferrable", "deferrable initially deferred"])
        table, columns = self._picks.one_of([("a", "id"), ("m", columns), ("m", columns)])
        between = f"alter table m rename {first} to between; alter table m rename {second} to {first};"
        return self._picks.one_of(
            [
                f"alter table {table} drop constraint {table}_pkey, add primary key ({columns}) {how}",
                f"alter table {table} drop constraint {table}_pkey, add primary key ({columns}) {how}",
                f"{between} alter table m rename between to {second}",
                f"alter table m rename {first} to x{self._picks.number()}",
                "begin; alter table a rename id to ident; update a set n = n + 1 where ident < 9;"
                " alter table a rename ident to id; commit",
            ]
        )

    def _detours(self) -> Sequence[Detour]:
        kind = self._publication.kind
        return [*self._of_publications(), *self._of_tables(), *(self._of_entries() if kind == "listed" else [])]

    def _of_publications(self) -> Sequence[Detour]:
        publication = self._publication
        alter = f"alter publication {publication.name}"
        words = "update one set words = 'unseen' where id < 9"
        detours = [
            Detour(f"{alter} set (publish = 'insert, delete')", words, publication.put_back),
            Detour(
                f"{alter} set (publish_via_partition_root = false)", "update p set words = ''", publication.put_back
            ),
            Detour(f"drop publication {publication.name}", words, publication.create),
        ]
        if publication.kind == "schemas":
            detours.append(Detour(f"{alter} drop tables in schema public", words, publication.entry("one")))
        return detours

    def _of_tables(self) -> Sequence[Detour]:
        table, twin, names = self._picks.one_of(["a", "one", "two", "m"]), self._twin(), self._publication
        words = f"update {twin} set words = 'unseen' where id < {self._picks.id()}"
        change = self._change(table)
        other = f"{twin}_{self._picks.number()}"
        self.names[twin].append(f"public.{other}")
        label, attribute = self._picks.label(), f"z{self._picks.number()}"
        identity = self._picks.one_of(["full", "default", "nothing", "using index m_code_key", "using index m_pkey"])
        rename, key = f"alter table {twin} rename", f"insert into {table} values (-{self._picks.id()}, 1)"
        detours = [
            Detour(
                f"{rename} to {other}", f"delete from {other} where id < 4", f"alter table {other} rename to {twin}"
            ),
            Detour(
                f"alter table {twin} set schema away",
                f"update away.{twin} set words = 'unseen'",
                f"alter table away.{twin} set schema public",
            ),
            Detour(
                f"{rename} words to kept; {rename} note to words",
                words,
                f"{rename} words to note; {rename} kept to words",
            ),
            Detour(f"{rename} id to ident", f"delete from {twin} where ident = 3", f"{rename} ident to id"),
            Detour(
                f"alter table {table} replica identity {identity}",
                change,
                f"alter table {table} replica identity default",
            ),
            Detour(
                f"alter table {table} drop constraint {table}_pkey", key, f"alter table {table} add primary key (id)"
            ),
            Detour(
                f"drop table {twin}; create table {twin} {TWIN}",
                f"insert into {twin} values (1, 'made again')",
                names.entry(twin) if names.kind == "listed" else "select 1",
            ),
            Detour(
                "alter table p detach partition p_2",
                "update p_2 set words = 'bypassed'",
                "alter table p attach partition p_2 for values from (50) to (1000)",
            ),
            Detour(
                f"alter type label rename value '{label}' to 'other'",
                "update k set words = '!' where number < 5",
                f"alter type label rename value 'other' to '{label}'",
            ),
            Detour(
                f"alter type pair add attribute {attribute} int",
                "update k set number = number + 100 where number < 4",
                f"alter type pair drop attribute {attribute}",
            ),
        ]
        if names.kind != "listed":
            detours += [Detour(f"alter table {twin} set unlogged", words, f"alter table {twin} set logged")] * 2
        return detours

    def _of_entries(self) -> Sequence[Detour]:
        """A table leaves the publication, or stays in it with only some columns or rows."""
        table, twin = self._picks.one_of(["a", "one", "two", "m"]), self._twin()
        alter = f"alter publication {self._publication.name}"
        narrow = self._picks.one_of(
            [f"{table} where (id > 5)", f"{table} (id, words)", "b where (n > 9)", "k (id, number)"]
        )
        name = narrow.split(" ", maxsplit=1)[0]
        leaves = Detour(f"{alter} drop table {table}", self._change(table), f"{alter} add table {table}")
        narrowed = Detour(
            f"{alter} drop table {name}; {alter} add table {narrow}",
            self._change(table),
            f"{alter} drop table {name}; {alter} add table {name}",
        )
        unlogged = Detour(
            f"{alter} drop table {twin}; alter table {twin} set unlogged",
            self._change(twin),
            f"alter table {twin} set logged; {alter} add table {twin}",
        )
        return [leaves, leaves, narrowed, narrowed, unlogged]

    def _twin(self) -> str:
        return self._picks.one_of(["one", "two"])

    def _change(self, table: str) -> str:
        if table == "m":
            return self._picks.row_of_moved_key()
        return f"update {table} set words = 'unseen' where id < {self._picks.id()}"

    def _detour(self) -> str:
        detour = self._picks.one_of(self._detours())
        if self._picks.chance.random() < 0.5:
            return "; ".join(part for part in (detour.there, detour.meanwhile, detour.back) if part)
        self._back.append(detour.back)
        return detour.there

    def _way_back(self) -> str:
        if not self._back:
            return self._detour()
        return self._back.pop(self._picks.chance.randrange(len(self._back)))

    def _replace(self) -> str:
        number = self._picks.number()
        entry = "" if self._publication.kind != "listed" else f"; {self._publication.entry('a')}"
        return self._picks.one_of(
            [
                "begin; alter table one rename to between; alter table two rename to one;"
                " alter table between rename to two; commit",
                f"create table a_new (like a including all); insert into a_new select * from a;"
                f" alter table a rename to a_{number}; alter table a_new rename to a{entry}",
            ]
        )
