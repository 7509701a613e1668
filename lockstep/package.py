"""``lockstep package``: one archive of what Spark's executors need of us. Spark unpacks it on each of them.

Our Python code alone suits every machine, and the same code gives the same bytes. The packages that it imports are
partly compiled: with them, and our own compiled code, the archive suits executors of this machine's kind with this
minor version of Python. Nothing in it depends on the path that it is unpacked to.
"""

import os
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from cdc.model.errors import ConfigurationError
from jobs.spark.shipped_code import PACKAGES, compiled_files, source_files

# Spark brings PySpark to its executors itself; the others are what the driver, capture and the command import.
NOT_ON_EXECUTORS: Final = frozenset({"alembic", "lmdb", "pyspark", "rich", "typer"})

_REQUIREMENT: Final = re.compile(r"(?P<name>[A-Za-z0-9._-]+)\s*(?:\[(?P<extras>[^]]*)])?")
_EXTRA: Final = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")

# The earliest time that a zip file can hold, so that the build time leaves no trace.
_TIME: Final = (1980, 1, 1, 0, 0, 0)
_MODE: Final = 0o644

_IN_EVERY_ARCHIVE: Final = {f"{package}/__init__.py" for package in PACKAGES}

# Three times as fast as the default for a tenth more bytes.
_LEVEL: Final = 1


def package(output: Path, *, environment: bool = False) -> Path:
    """Write the archive and return its absolute path. ``environment`` adds the third-party packages.

    An archive of that name is replaced in one step or not at all. Raises ConfigurationError if the packages aren't
    installed here, if the file can't be written, or if it exists and isn't an archive of ours.
    """
    files: dict[str, tuple[Path, int]] = {name: (file, ZIP_STORED) for name, file in source_files().items()}
    if environment:
        files |= {name: (file, ZIP_DEFLATED) for name, file in _installed_files("lockstep")}
        files |= {name: (file, ZIP_DEFLATED) for name, file in compiled_files().items()}
    output = output.absolute()
    if output.exists() and not output.is_file():  # replaced, a device would be gone
        raise ConfigurationError(
            f"the archive {output} can't be written: that path isn't a file", hint="run this in another directory"
        )
    if not _may_be_replaced(output):
        raise ConfigurationError(
            f"the archive {output} can't be written: that file isn't an archive of `lockstep package`",
            hint="move that file away, or run this in another directory",
        )
    partial = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with ZipFile(partial, "w", compresslevel=_LEVEL) as archive:
            for name, (file, compression) in sorted(files.items()):
                archive.writestr(_entry(name, compression), file.read_bytes(), compresslevel=_LEVEL)
        partial.replace(output)
    except OSError as error:
        raise ConfigurationError(
            f"the archive {output} can't be written: {error.strerror}", hint="run this in another directory"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return output


def _may_be_replaced(output: Path) -> bool:
    """Whether nothing would be lost: there is no file, an empty one, or an archive that an earlier call wrote."""
    if not output.exists() or output.stat().st_size == 0:
        return True
    try:
        with ZipFile(output) as archive:
            entries = {entry.filename: entry.date_time for entry in archive.infolist()}
    except BadZipFile:
        return False
    return entries.keys() >= _IN_EVERY_ARCHIVE and set(entries.values()) == {_TIME}


def _entry(name: str, compression: int) -> ZipInfo:
    entry = ZipInfo(name, _TIME)
    entry.compress_type = compression
    entry.create_system = 3  # Unix, wherever it is made: what the mode means depends on it
    entry.external_attr = _MODE << 16
    return entry


def _installed_files(root: str) -> Iterator[tuple[str, Path]]:
    """Name inside the archive -> file, of all that ``root`` needs on executors. Raises ConfigurationError if ``root``
    isn't installed."""
    try:
        needed = required(distribution(root))
    except PackageNotFoundError as error:
        raise ConfigurationError(
            "the packages that executors need can't be found: Lockstep itself isn't installed for this Python",
            hint="install it (pip install .), or leave --environment out and install the packages on the executors",
        ) from error
    for package in needed:
        for file in package.files or ():
            # Files outside are the commands, which hold this machine's paths.
            if ".." not in file.parts and "__pycache__" not in file.parts:
                yield file.as_posix(), Path(str(package.locate_file(file)))


def required(root: Distribution, *, leave_out: Iterable[str] = NOT_ON_EXECUTORS) -> list[Distribution]:
    """What ``root`` requires, directly or not, as far as it is installed here; without ``root`` itself. Conditions
    other than extras aren't evaluated: if they didn't hold, nothing was installed."""
    passed_over = {_canonical(name) for name in leave_out}
    packages: dict[str, Distribution] = {}
    looked_at: set[tuple[str, str]] = set()
    waiting = [(root, "")]
    while waiting:
        current, extra = waiting.pop()
        for name, extras in _requirements(current, extra):
            if name in passed_over:
                continue
            try:
                packages.setdefault(name, distribution(name))
            except PackageNotFoundError:
                continue
            new = {(name, wanted) for wanted in ("", *extras)} - looked_at
            looked_at |= new
            waiting += [(packages[name], wanted) for _, wanted in new]
    return [packages[name] for name in sorted(packages)]


def _requirements(distribution: Distribution, extra: str) -> Iterator[tuple[str, list[str]]]:
    """What it requires under this extra, or under none (``""``): names, each with the extras that are wanted of it."""
    for text in distribution.requires or ():
        requirement, _, condition = text.partition(";")
        under = _EXTRA.search(condition)
        match = _REQUIREMENT.match(requirement)
        if match is not None and (under[1] if under else "") == extra:
            wanted = (name.strip() for name in (match["extras"] or "").split(","))
            yield _canonical(match["name"]), [name for name in wanted if name]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
