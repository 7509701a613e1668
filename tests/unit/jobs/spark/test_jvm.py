"""What is asked of a JVM that has gone."""

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway

from cdc.model.errors import Unavailable
from jobs.spark.jvm import questions
from stack.ports import pick


def test_a_jvm_that_has_gone_does_not_make_a_question_wrong() -> None:
    gone = JavaGateway(gateway_parameters=GatewayParameters(port=pick()))
    with pytest.raises(Unavailable, match="the JVM of Spark doesn't answer"), questions():
        gone.entry_point.sessionState()
