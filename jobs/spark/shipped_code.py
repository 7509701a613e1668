"""The part of our code that executors run, and whether an archive holds the same. See ``lockstep.package``."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final
from zipfile import BadZipFile, ZipFile

from cdc.model.errors import ConfigurationError

PACKAGES: Final = ("cdc", "jobs", "sinks", "views")
"""What tasks import, from ``jobs.spark.worker_daemon`` on: whole packages, since some modules are imported late."""

EXTENSIONS: Final = ("extensions/__init__.py", "extensions/*/__init__.py", "extensions/*/executor/*.py")
"""The code that extensions run in tasks: it is in a package ``executor``."""

ROOT: Final = Path(__file__).resolve().parents[2]


def source_files(root: Path = ROOT) -> dict[str, Path]:
    """Name inside an archive -> file, in the order of the names."""
    patterns = (*(f"{package}/**/*.py" for package in PACKAGES), *EXTENSIONS)
    return dict(sorted((file.relative_to(root).as_posix(), file) for each in patterns for file in root.glob(each)))


def compiled_files(root: Path = ROOT) -> dict[str, Path]:
    """As ``source_files``, for what was compiled here for this kind of machine and this minor version of Python.
    Executors can do without it, and don't use what was built from other code."""
    files = (file for package in PACKAGES for file in (root / package).rglob(f"*{EXTENSION_SUFFIXES[0]}"))
    return dict(sorted((file.relative_to(root).as_posix(), file) for file in files))


def check_archive(archive: Path, root: Path = ROOT) -> None:
    """Raise ConfigurationError unless the archive holds exactly the code that runs here. Tasks are made here and read
    there. With code of another version they would fail in the middle of a batch, or worse, do something else."""
    hint = "make it with `lockstep package`, and name it in spark.package"
    try:
        with ZipFile(archive) as content:
            ours = tuple(f"{package}/" for package in (*PACKAGES, "extensions"))
            names = [name for name in content.namelist() if name.endswith(".py") and name.startswith(ours)]
            archived = {name: content.read(name) for name in names}
    except FileNotFoundError as error:
        raise ConfigurationError(f"the archive for Spark's executors, {archive}, doesn't exist", hint=hint) from error
    except (OSError, BadZipFile) as error:
        raise ConfigurationError(f"the archive for Spark's executors, {archive}, can't be read", hint=hint) from error
    if archived != {name: file.read_bytes() for name, file in source_files(root).items()}:
        raise ConfigurationError(
            f"the archive for Spark's executors, {archive}, holds other code than runs here",
            hint="it was made by another version: make it again with `lockstep package`",
        )
