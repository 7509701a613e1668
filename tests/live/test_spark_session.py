"""A session of Spark, without a server."""

import threading
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cdc.model.errors import LockstepError, Unavailable
from jobs.spark.batch_call import BatchCall
from jobs.spark.jvm import jvm_calls, stop_query
from jobs.spark.session import write_no_checksums
from tests.databases import until

pytestmark = [pytest.mark.live, pytest.mark.busy]


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


def test_whatever_class_java_s_exception_has_it_becomes_one_error(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    with pytest.raises(Unavailable, match="Illegal Capacity"), jvm_calls(Unavailable):
        jvm.java.util.ArrayList(-1)
    with pytest.raises(Unavailable, match="ClassNotFoundException"), jvm_calls(Unavailable):
        jvm.java.lang.Class.forName("no.such")
    with pytest.raises(Unavailable, match="UNRESOLVED_COLUMN"), jvm_calls(Unavailable):
        spark.sql("select no_such")
