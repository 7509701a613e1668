"""A session of Spark, without a server."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.model.errors import LockstepError
from jobs.spark.session import write_no_checksums

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
