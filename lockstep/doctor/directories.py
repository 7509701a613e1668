"""Checks that the directories in which processes store files can exist on this machine, and can be written.

Creates nothing: it judges by what exists, up to the file system's root.
"""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from cdc.model.finding import Finding, Severity
from lockstep.config import Config


def _may_write(directory: Path) -> bool:
    return os.access(directory, os.W_OK | os.X_OK)


def directory_findings(config: Config, *, may_write: Callable[[Path], bool] = _may_write) -> list[Finding]:
    """A finding for each setting whose directory can't exist, or can't be written by this user, on this machine."""
    return [finding for setting, path in _named(config) for finding in _findings(setting, path, may_write)]


def _named(config: Config) -> Iterator[tuple[str, str]]:
    """The settings that are in use, each with its path."""
    spark = config.spark
    yield "pipeline.data_directory", str(config.pipeline.data_directory)
    if config.added_stores and "://" not in spark.checkpoint_directory:
        yield "spark.checkpoint_directory", spark.checkpoint_directory
    if config.views:
        yield "spark.view_directory", str(spark.view_directory)


def _findings(setting: str, path: str, may_write: Callable[[Path], bool]) -> Iterator[Finding]:
    why, fix = "a process that writes there doesn't start, or ends", f"set {setting} to a directory of your own"
    try:
        known = _nearest(Path(path))
    except (OSError, ValueError) as error:  # for example, of a name that is too long, or of U+0000
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        yield Finding(Severity.ERROR, setting, f"no directory can be there: {words}", why, fix)
        return
    if not known.is_dir():
        yield Finding(Severity.ERROR, setting, f"no directory can be there: {known} is none", why, fix)
    elif not may_write(known):
        yield Finding(
            Severity.WARNING,
            setting,
            f"the user who runs doctor can't write to {known} on this machine",
            f"{why}, if it runs as this user here",
            f"let this user write there, or {fix}",
        )


def _nearest(path: Path) -> Path:
    """The path, or the nearest one above it that exists; a link to nowhere counts. Raises OSError and ValueError for an
    impossible path."""
    for each in (path, *path.parents):
        try:
            each.stat()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                raise
            if error.errno == errno.ENOENT and each.is_symlink():
                return each
        else:
            return each
    return Path("/")
