"""jobs.settings"""

import pytest
from pydantic import ValidationError

from jobs.settings import SparkSettings


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,4]", "local[*, 4]"])
def test_a_local_master_is_one_process_here(master: str) -> None:
    assert SparkSettings(master=master).is_local


@pytest.mark.parametrize(
    "master",
    [
        "local-cluster[2,1,1024]",
        "spark://a:7077",
        "spark://a:7077,[fd00::1]:7077",
        "yarn",
        "k8s://https://kubernetes.default.svc:443",
        "k8s://10.0.0.1:6443",
    ],
)
def test_a_cluster_is_not_here(master: str) -> None:
    assert not SparkSettings(master=master).is_local


@pytest.mark.parametrize(
    "master",
    ["", "locall", "local[0]", "local[]", "local[2", "localhost:7077", "spark://a", "spark://", "Yarn", "mesos://a:1"],
)
def test_what_is_no_master_is_refused(master: str) -> None:
    with pytest.raises(ValidationError, match="is no master of Spark's"):
        SparkSettings(master=master)


def test_the_master_has_one_setting() -> None:
    with pytest.raises(ValidationError, match="has a setting of its own"):
        SparkSettings(conf={"spark.master": "yarn"})
