"""An archive of the classes that Spark loads: its place and its use. It halves the time that the driver takes to start.

A driver loads some ten thousand classes before its first batch, out of four hundred jars. The JVM can store them as
they are in memory, and map the file into the next JVM. It checks itself whether an archive fits its Java and its jars,
and goes on without if not. An archive belongs to an installation, so it lies in the environment's own folder. It is
optional.
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import Final

import pyspark

QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
"""The JVM's options that silence messages about an archive that doesn't fit."""


def java_home() -> Path | None:
    """The Java that will run Spark; None if JAVA_HOME doesn't say."""
    home = os.environ.get("JAVA_HOME")
    return Path(home) if home else None


def archive_file(home: Path | None) -> Path | None:
    """Where the archive for this Java is, or would be; None if it is unknown which Java it will be."""
    if home is None:
        return None
    try:
        release = (home / "release").read_bytes()
    except OSError:
        return None
    identity = hashlib.sha256(release + str((home, pyspark.__version__, pyspark.__file__)).encode())
    return Path(sys.prefix) / f"lockstep-spark-{identity.hexdigest()[:16]}.jsa"


def archive_options(home: Path | None) -> list[str]:
    """The JVM's options to use the archive; none without one."""
    file = archive_file(home)
    if file is None or not file.exists() or " " in str(file):  # Spark takes a blank for the end of an option
        return []
    return [f"-XX:SharedArchiveFile={file}", *QUIET]
