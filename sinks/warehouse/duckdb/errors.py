"""DuckDB's errors as Lockstep's, each with what to do about it (pure)."""

import re
from pathlib import Path
from typing import Final

from cdc.model.errors import LockstepError, PerhapsStoreRefuses, StoreRefuses, Unavailable

_RETRY_AFTER_S: Final = 1.0
_HOLDER = re.compile(r"lock is held in (?P<program>.*?) \(PID (?P<pid>\d+)\)")

# DuckDB has no codes: an error's class says little, its text the rest.
_PASSING: Final = ("TransactionException",)
_NO_LINKS: Final = (
    "its file system has no hard links, by which it is created at once for all",
    "create it there with DuckDB, or choose another place",
)
_WORDS: Final = {
    "No space left on device": ("its disk is full", "free space; nothing of the batch was written"),
    "Permission denied": ("it can't be opened", "let this user read and write the file and its directory"),
    "Read-only file system": ("it can't be written", "mount its file system for writing, or choose another place"),
    "No such file or directory": ("its directory doesn't exist", "create the directory, or mend url of this sink"),
    "Is a directory": ("it is a directory", "mend url of this sink: it has to name a file"),
    "not a valid DuckDB database file": (
        "it is no DuckDB file",
        "mend url of this sink; a file that was damaged is rebuilt from the log: move it away, then lockstep rebuild",
    ),
    "Corrupt database file": (
        "it was damaged",
        "look at its disk; move the file away and rebuild it from the log: lockstep rebuild",
    ),
    "version number": (
        "another version of DuckDB wrote it",
        "use that version, or move the file away and rebuild it from the log: lockstep rebuild",
    ),
    "different configuration": (
        "this process has opened it with other settings",
        "give the address of this sink the same settings everywhere",
    ),
    "Operation not permitted": _NO_LINKS,
    "Operation not supported": _NO_LINKS,
    "Could not write file": (
        "it can't be written",
        "look at its disk and at limits of this user; nothing of the batch was written",
    ),
}
_OUT_OF_MEMORY: Final = "OutOfMemoryException"
_HINTS: Final = {
    _OUT_OF_MEMORY: "give it more, ?memory_limit=4GB after the address of this sink, or take smaller batches",
    "CatalogException": "a table or view was removed or replaced by hand; restart the job, or rebuild it: lockstep "
    "rebuild",
    "BinderException": "a column was removed or renamed by hand; rebuild it: lockstep rebuild",
    "SerializationException": "the file is damaged: move it away and rebuild it from the log: lockstep rebuild",
    "FatalException": "look at the file's disk; a file that was damaged is rebuilt from the log: lockstep rebuild",
}
# The text of these errors may hold values.
_SILENT: Final = frozenset(
    {"ConversionException", "ConstraintException", "InvalidInputException", "OutOfRangeException", "DataError"}
)


def is_held(error: BaseException) -> bool:
    """Whether another process has the file, or another connection of this one."""
    words = str(_original(error))
    return "Could not set lock on file" in words or "Unique file handle conflict" in words


def translated(error: BaseException, path: Path) -> LockstepError:
    original = _original(error)
    kind, words = type(original).__name__, str(original)
    if is_held(error):
        holder = _HOLDER.search(words)
        who = f"process {holder['pid']} ({holder['program']})" if holder else "something else in this process"
        return Unavailable(
            f"{who} holds the warehouse's file {str(path)!r}: one process at a time can use it, so end what keeps it "
            "open",
            retry_after_s=_RETRY_AFTER_S,
        )
    first_line = next(iter(words.strip().splitlines()), kind)
    for sign, (what, hint) in _WORDS.items():
        if sign in words:
            return StoreRefuses(f"the warehouse's file {str(path)!r} can't be used, {what}: {first_line}", hint=hint)
    if kind in _PASSING:  # checked after lack of space, which such an error can mean too
        return Unavailable(f"the warehouse's file {str(path)!r} is busy: {first_line}", retry_after_s=_RETRY_AFTER_S)
    said = kind if kind in _SILENT else f"{first_line} ({kind})"
    refused = PerhapsStoreRefuses if kind == _OUT_OF_MEMORY else LockstepError
    return refused(f"the warehouse's file {str(path)!r} refuses: {said}", hint=_HINTS.get(kind))


def _original(error: BaseException) -> BaseException:
    return getattr(error, "orig", None) or error
