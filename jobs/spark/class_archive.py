"""An archive of the classes that Spark loads: where it is, how it is used. The driver starts in half the time with it.

A driver loads some ten thousand classes before its first batch, out of four hundred jars. The JVM can keep them as they
are in memory after that, and map the file into the next JVM. It checks by itself whether an archive fits its Java and
its jars, and goes on without where it doesn't. An archive belongs to an installation, so it lies in the environment's
own folder. Nothing needs it to be there.
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import Final

import pyspark

QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
"""The JVM's options that keep it from telling of an archive that doesn't fit."""


def java_home() -> Path | None:
    """The Java that will run Spark, None where nobody has said which."""
    home = os.environ.get("JAVA_HOME")
    return Path(home) if home else None


def archive_file(home: Path | None) -> Path | None:
    """Where the archive for this Java is, or would be; None where it isn't known which Java it will be."""
    if home is None:
        return None
    try:
        release = (home / "release").read_bytes()
    except OSError:
        return None
    identity = hashlib.sha256(release + str((home, pyspark.__version__, pyspark.__file__)).encode())
    return Path(sys.prefix) / f"lockstep-spark-{identity.hexdigest()[:16]}.jsa"


def archive_options(home: Path | None) -> list[str]:
    """The JVM's options for using the archive; none while there isn't one."""
    file = archive_file(home)
    if file is None or not file.exists() or " " in str(file):  # Spark takes a blank for the end of an option
        return []
    return [f"-XX:SharedArchiveFile={file}", *QUIET]
