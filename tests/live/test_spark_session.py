"""A session of Spark, without a server."""

import os
import subprocess
import sys
import threading
import uuid
from typing import Any

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession

from cdc.model.errors import LockstepError, Unavailable
from jobs.spark.batch_call import BatchCall
from jobs.spark.jvm import jvm_calls, stop_query
from jobs.spark.session import write_no_checksums
from tests.databases import until

pytestmark = [pytest.mark.live, pytest.mark.busy]


@pytest.mark.soak
def test_another_file_system_for_this_machine_is_refused_with_the_setting(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    chosen = {
        "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "fs.file.impl.disable.cache": "true",  # or the one that is open already is taken
    }
    hadoop = context._jsc.hadoopConfiguration()
    for name, value in chosen.items():
        hadoop.set(name, value)
    try:
        with pytest.raises(LockstepError) as refused:
            write_no_checksums(spark)
    finally:
        for name in chosen:
            hadoop.unset(name)
    assert "spark.hadoop.fs.file.impl" in (refused.value.hint or "")
    write_no_checksums(spark)


@pytest.mark.soak
def test_a_query_that_does_not_stop_in_time_goes_on_and_stops_later(spark: SparkSession) -> None:
    session = spark.newSession()
    begun, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()
    session.conf.set("spark.sql.streaming.stopTimeout", "100")

    def batch(_frame: DataFrame, _number: int) -> None:
        begun.set()
        may_end.wait(300)
        has_ended.set()

    call = BatchCall(batch)
    query = session.readStream.format("rate").load().writeStream.foreachBatch(call).start()
    try:
        assert begun.wait(300)
        with jvm_calls(LockstepError):
            assert not stop_query(query)
            assert not stop_query(query)
    finally:
        may_end.set()
    until(lambda: stop_query(query))
    assert has_ended.is_set()
    call.close()


@pytest.mark.soak
def test_whatever_class_java_s_exception_has_it_becomes_one_error(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    with pytest.raises(Unavailable, match="Illegal Capacity"), jvm_calls(Unavailable):
        jvm.java.util.ArrayList(-1)
    with pytest.raises(Unavailable, match="ClassNotFoundException"), jvm_calls(Unavailable):
        jvm.java.lang.Class.forName("no.such")
    with pytest.raises(Unavailable, match="UNRESOLVED_COLUMN"), jvm_calls(Unavailable):
        spark.sql("select no_such")


_STRANGER = """
import encodings.idna, os, socket, struct, sys  # what is loaded later may lie where only root can read

os.setgid(65534)
os.setuid(65534)
ports, block = sys.argv[1].split(","), sys.argv[2].encode()

def text(value):
    return struct.pack(">i", len(value)) + value

def frame(kind, head, body=b""):
    whole = bytes([kind]) + head
    return struct.pack(">q", 8 + len(whole) + len(body)) + whole + body

def received(wire, count):
    data = b""
    while len(data) < count and (part := wire.recv(count - len(data))):
        data += part
    return data

def answer(wire):
    size = struct.unpack(">q", received(wire, 8) or struct.pack(">q", 8))[0]
    return received(wire, size - 8)

# Spark's OpenBlocks as an RpcRequest, and what it opens as a ChunkFetchRequest.
wanted = b"\\0" + text(b"stranger") + text(b"driver") + struct.pack(">i", 1) + text(block)
for port in ports:
    got = b""
    try:
        with socket.create_connection(("127.0.0.1", int(port)), timeout=20) as wire:
            wire.sendall(frame(3, struct.pack(">qi", 1, len(wanted)), wanted))
            opened = answer(wire)
            if opened[:1] == b"\\x04":
                stream = struct.unpack(">q", opened[14:22])[0]
                wire.sendall(frame(0, struct.pack(">qi", stream, 0)))
                got = answer(wire)
    except (OSError, struct.error):  # hung up, or another protocol
        pass
    print(port, got.hex())
for directory in sys.argv[3:]:
    try:
        print(os.listdir(directory))
    except PermissionError:
        print("refused")
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0, reason="root alone becomes somebody else"
)
def test_nobody_else_on_this_machine_gets_what_tasks_are_sent(spark: SparkSession) -> None:
    """The command of a task has the passwords of its sink, and is a broadcast."""
    secret = uuid.uuid4().hex
    sent = spark.sparkContext.broadcast(secret)
    directories = [spark.conf.get("spark.local.dir"), spark.conf.get("spark.python.unix.domain.socket.dir")]
    jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    ports = {str(each.laddr.port) for each in jvm.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    assert len(ports) >= 2, "the driver's and its blocks'"
    block = f"broadcast_{sent._jbroadcast.id()}_piece0"  # type: ignore[attr-defined]
    arguments = [sys.executable, "-c", _STRANGER, ",".join(ports), block, *filter(None, directories)]
    stranger = subprocess.run(arguments, capture_output=True, text=True, check=True)
    *answers, local, sockets = stranger.stdout.splitlines()
    assert (local, sockets) == ("refused", "refused")
    assert sorted(answer.split()[0] for answer in answers) == sorted(ports)
    assert secret.encode().hex() not in stranger.stdout
