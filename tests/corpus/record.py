"""Records pgoutput messages of a real server: ``python -m tests.corpus.record <dsn>``.

Each message becomes ``pgoutput/<name>.bin`` beside ``pgoutput/<name>.json``, which says what it means. The meaning is
written by our own decoder: read it against the SQL below before you commit it. The database is recreated and dropped.
"""

import enum
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from cdc.protocol.pgoutput import UNCHANGED, Message, decode
from tests.databases import Database

CORPUS = Path(__file__).parent / "pgoutput"

_SETUP = """
create type mood as enum ('calm', 'cross');
create table plain (id int primary key, name text, amount numeric(10,2));
create table typed (id int primary key, mood mood);
create table wide (id int primary key, large text, small text);
alter table wide alter large set storage external;
create table whole (id int primary key, name text, large text);
alter table whole replica identity full;
alter table whole alter large set storage external;
create table "Odd "" Schéma" (id int primary key, "a%b""c" text, "list" int[]);
create table parent (id int primary key);
create table child (id int primary key, parent_id int references parent);
"""

_LARGE = "repeat('0123456789', 210)"

# Name of the recording -> (SQL, type byte, which of that type in the transaction).
_RECORDINGS: dict[str, tuple[str, str, int]] = {
    "begin": ("insert into plain values (1, 'first', 1.50)", "B", 0),
    "commit": ("insert into plain values (2, 'second', 2.50)", "C", 0),
    "insert": ("insert into plain values (3, E'tab\\there, \\U0001F600', 12.30)", "I", 0),
    "insert_nulls": ("insert into plain values (4, null, null)", "I", 0),
    "insert_empty_text": ("insert into plain values (5, '', 0)", "I", 0),
    "relation": ("insert into whole values (1, 'one', null)", "R", 0),
    "relation_default": ("insert into wide values (1, 'x', 'y')", "R", 0),
    "relation_odd_names": ("""insert into "Odd "" Schéma" values (1, 'x', '{1,NULL}')""", "R", 0),
    "relation_with_enum": ("insert into typed values (1, 'calm')", "R", 0),
    "type_enum": ("alter table typed add other mood; insert into typed values (2, 'cross', 'calm')", "Y", 0),
    "insert_enum": ("insert into typed values (3, 'cross')", "I", 0),
    "update": ("update plain set name = 'changed' where id = 1", "U", 0),
    "update_key": ("update plain set id = 100 where id = 2", "U", 0),
    "update_full": ("update whole set name = 'two' where id = 1", "U", 0),
    "update_unchanged_toast": (
        f"insert into wide values (2, {_LARGE}, 'before'); update wide set small = 'after' where id = 2",
        "U",
        0,
    ),
    "update_key_unchanged_toast": ("update wide set id = 20 where id = 2", "U", 0),
    "update_full_unchanged_toast": (
        f"insert into whole values (2, 'before', {_LARGE}); update whole set name = 'after' where id = 2",
        "U",
        0,
    ),
    "delete_key": ("delete from plain where id = 3", "D", 0),
    "delete_full": ("delete from whole where id = 1", "D", 0),
    "truncate": ("truncate plain", "T", 0),
    "truncate_restart_identity": ("truncate plain, typed restart identity", "T", 0),
    "truncate_cascade": (
        "insert into parent values (1); insert into child values (1, 1); truncate parent cascade",
        "T",
        0,
    ),
    "truncate_cascade_restart_identity": ("truncate parent restart identity cascade", "T", 0),
    "message_transactional": ("select pg_logical_emit_message(true, 'a prefix', 'some content')", "M", 0),
    "message_direct": ("select pg_logical_emit_message(false, 'a prefix', '\\x00ff'::bytea)", "M", 0),
    "message_empty": ("select pg_logical_emit_message(true, '', '')", "M", 0),
    "origin": ("insert into plain values (6, 'from elsewhere', 1)", "O", 0),
}


def meaning(message: Message) -> dict[str, Any]:
    """A message as JSON."""
    return {"message": type(message).__name__} | {
        field.name: _plain(getattr(message, field.name)) for field in fields(message)
    }


def _plain(value: object) -> Any:
    if value is UNCHANGED:
        return {"unchanged": True}
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {"image": type(value).__name__} | {
            field.name: _plain(getattr(value, field.name)) for field in fields(value)
        }
    return value


def record(database: Database) -> None:
    """Run the SQL and write what the slot streams of it."""
    database.execute(_SETUP)
    database.publish_all()
    origin = "elsewhere"
    database.value("select pg_replication_origin_create(%s)", origin)
    for name, (statements, letter, index) in _RECORDINGS.items():
        slot, start = database.create_slot()
        before = ""
        if name == "origin":
            database.value("select pg_replication_origin_session_setup(%s)", origin)
            before = "select pg_replication_origin_xact_setup('16/B374D848', now());"
        database.execute(f"begin; {before} {statements}; commit")
        if name == "origin":
            database.value("select pg_replication_origin_session_reset()")
        sent = database.payloads(slot, start)
        payloads = [payload for _, payload in sent if payload.startswith(letter.encode())]
        (CORPUS / f"{name}.bin").write_bytes(payloads[index])
        text = json.dumps(meaning(decode(payloads[index])), indent=1, ensure_ascii=False)
        (CORPUS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(name, text)
        database.drop_slot(slot)
    database.value("select pg_replication_origin_drop(%s)", origin)


def main() -> None:
    """Record everything from the server of the given DSN."""
    database = Database(sys.argv[1])
    try:
        record(database)
    finally:
        database.drop()


if __name__ == "__main__":
    main()
