"""What is asked of a JVM that has gone."""

from types import SimpleNamespace
from typing import cast

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from pyspark.sql import SparkSession

from cdc.model.errors import Unavailable
from jobs.spark.computed_columns import TablePlan, expression_problems
from sinks.table_settings import Expressions
from stack.ports import pick
from tests.builders import table


def test_a_jvm_that_has_gone_does_not_make_an_expression_wrong() -> None:
    gone = JavaGateway(gateway_parameters=GatewayParameters(port=pick()))
    session = cast(SparkSession, SimpleNamespace(_jsparkSession=gone.entry_point))
    plan = TablePlan(table(), Expressions({}, "id > 2"))
    with pytest.raises(Unavailable, match="the JVM of Spark doesn't answer"):
        expression_problems(session, {table().name: plan})
