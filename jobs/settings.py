"""Settings of the Spark jobs. Nothing else knows whether Spark runs on this machine or on a cluster."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from cdc.secret import is_secret_name
from cdc.settings import Settings

CHECKPOINT_DIRECTORY = ".lockstep/checkpoints"


def _leaves_master_alone(conf: Mapping[str, str]) -> Mapping[str, str]:
    if "spark.master" in conf:
        raise ValueError("spark.master has a setting of its own: master in [spark]")
    return conf


_LOCAL: Final = re.compile(r"local(\[([1-9]\d*|\*)(\s*,\s*\d+)?\])?")
_CLUSTER: Final = re.compile(
    r"local-cluster\[\s*[1-9]\d*\s*,\s*[1-9]\d*\s*,\s*[1-9]\d*\s*\]|yarn"
    r"|spark://(\[[^\s,\]]+\]|[^\s,/:]+):\d+(,(\[[^\s,\]]+\]|[^\s,/:]+):\d+)*"
    r"|k8s://(https?://)?[^\s/]+(/\S*)?"
)


def _is_master(master: str) -> str:
    if not _LOCAL.fullmatch(master) and not _CLUSTER.fullmatch(master):
        raise ValueError(
            "is no master of Spark's: local[2] runs it here, and a cluster is spark://host:7077, yarn or k8s://host:443"
        )
    return master


_JAVA_PROPERTY: Final = re.compile(r"-D([^\s=]+)=")


def _holds_no_secret(conf: Mapping[str, str]) -> Mapping[str, str]:
    """Reject secrets: settings become arguments of a process, which everybody on the machine can see."""
    secrets = [name for name, value in conf.items() if any(map(is_secret_name, (name, *_JAVA_PROPERTY.findall(value))))]
    if secrets:
        raise ValueError(
            f"{', '.join(secrets)}: secrets don't belong in here; use spark-defaults.conf, or core-site.xml for a"
            " file system's"
        )
    return conf


LIBRARIES_VARIABLE: Final = "LOCKSTEP_LIBRARIES"
"""The environment variable with the modules, separated by commas, that Python's daemon loads for its workers."""


class SparkSettings(Settings):
    """How the Spark jobs run. The defaults favour latency; a backlog is still read in few large batches."""

    master: Annotated[str, AfterValidator(_is_master)] = Field(
        default="local[2]", description="Spark's master; local[n] runs n tasks in one process here"
    )
    trigger_ms: Annotated[int, Field(ge=0)] = Field(
        default=200,
        description="shortest time between two batches; 200 costs a quarter less CPU than 0 at the same latency",
    )
    small_batch_rows: Annotated[int, Field(ge=0)] = Field(
        default=2_000, description="up to this many records one task reads all partitions: tasks cost more than rows"
    )
    checkpoint_directory: str = Field(
        default=CHECKPOINT_DIRECTORY,
        description="where Spark keeps offsets and states of its own queries: a path, or a URL that all of it reaches",
    )
    view_directory: Path = Field(
        default=Path(".lockstep/views"),
        description="where views keep their states, on the machine of the task; a lost one is built from the log again",
    )
    retry_s: Annotated[float, Field(gt=0)] = Field(
        default=30.0, description="how long a task waits for a destination before its batch is begun again later"
    )
    package: Path | None = Field(
        default=None,
        description="the archive of `lockstep package` for the executors of a cluster; none where they have it"
        " installed",
    )
    conf: Annotated[Mapping[str, str], AfterValidator(_leaves_master_alone), AfterValidator(_holds_no_secret)] = Field(
        default_factory=dict,
        description="further Spark settings; they win over ours, and lists of jars, archives and paths add up",
    )

    @property
    def is_local(self) -> bool:
        """Whether all of Spark is one process on this machine."""
        return _LOCAL.fullmatch(self.master) is not None
