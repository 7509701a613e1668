"""What doctor makes of a refused connection, of versions and of limits."""

import pytest

from cdc.model.finding import Severity
from cdc.postgres.preflight.endpoint import origin_findings, refusal
from cdc.postgres.preflight.server import version_finding
from cdc.postgres.preflight.slots import room_finding
from cdc.postgres.settings import SourceSettings

SOURCE = SourceSettings(dsn="host=db dbname=shop user='the reader'", tables=("public.t",))


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (
            'FATAL:  no pg_hba.conf entry for host "10.1.2.3", user "reader", database "shop", no encryption',
            'add to pg_hba.conf: host "shop" "reader" 10.1.2.3/32 scram-sha-256\nselect pg_reload_conf();',
        ),
        (
            'FATAL:  no pg_hba.conf entry for replication connection from host "fe80::1", user "reader",'
            " SSL encryption",
            'add to pg_hba.conf: host replication "reader" fe80::1/128 scram-sha-256\nselect pg_reload_conf();',
        ),
        (
            'FATAL:  pg_hba.conf rejects connection for host "10.1.2.3", user "reader", database "shop", no encryption',
            'add to pg_hba.conf: host "shop" "reader" 10.1.2.3/32 scram-sha-256\nselect pg_reload_conf();',
        ),
        (
            "FATAL:  unsupported startup parameter: options",
            "point source.dsn at PostgreSQL itself, not at a pooler",
        ),
        ('FATAL:  role "a "b" does not exist', 'create role "a ""b" login replication;'),
        ('FATAL:  role "b" is not permitted to log in', 'alter role "b" login;'),
        ('FATAL:  permission denied for database "shop"', 'grant connect on database "shop" to "the reader";'),
        ('FATAL:  database "shop" does not exist', "correct dbname in source.dsn"),
        (
            'FATAL:  password authentication failed for user "b"',
            "set $LOCKSTEP_SOURCE_PASSWORD or source.password_file",
        ),
        (
            "FATAL:  number of requested standby connections exceeds max_wal_senders (currently 2)",
            "alter system set max_wal_senders = 20;  -- then restart the server",
        ),
    ],
)
def test_a_refusal_has_its_way_out(text: str, fix: str) -> None:
    finding = refusal(text, SOURCE)
    assert (finding.severity, finding.what, finding.fix) == (Severity.ERROR, text, fix)


@pytest.mark.parametrize(
    ("version", "severity"), [(130022, Severity.ERROR), (140000, Severity.OK), (180001, Severity.OK)]
)
def test_servers_from_14_on_are_taken(version: int, severity: Severity) -> None:
    assert version_finding(version).severity is severity


@pytest.mark.parametrize(("origin", "version", "count"), [("any", 140000, 0), ("none", 150015, 1), ("none", 160000, 0)])
def test_an_origin_that_the_server_does_not_know_is_found(origin: str, version: int, count: int) -> None:
    assert len(origin_findings(origin, version)) == count


@pytest.mark.parametrize(("used", "severity"), [(8, Severity.OK), (9, Severity.ERROR), (10, Severity.ERROR)])
def test_a_slot_for_the_stream_and_one_for_a_snapshot_have_to_be_free(used: int, severity: Severity) -> None:
    finding = room_finding("replication slots", "max_replication_slots", used=used, limit=10, needed=2)
    assert finding.severity is severity
    if severity is Severity.ERROR:
        assert finding.fix == "alter system set max_replication_slots = 14;  -- then restart the server"
