"""The warehouse's errors as Lockstep's, each with what to do about it (pure)."""

import re
from typing import Any, Final

from cdc.model.errors import LockstepError, PerhapsStoreRefuses, StoreRefuses, Unavailable
from sinks.access import certificate_refused, untrusted

UNIQUE_VIOLATION: Final = "23505"
LOCK_NOT_AVAILABLE: Final = "55P03"
INVALID_TABLE_DEFINITION: Final = "42P16"

# SQLSTATE classes. Data errors belong to a row; 54 is "index row too large" and similar.
_ROW_CLASSES: Final = ("22", "23", "54")
# Connections, transaction rollbacks, insufficient connections, operator intervention, busy objects, timeouts.
_PASSING: Final = ("08", "40", "25P03", "53300", "55P03", "57")
# Login and database, resources such as the disk, the server's files, and a server that only reads.
_OF_STORE: Final = ("25006", "28", "3D", "53", "58")
_INSUFFICIENT_PRIVILEGE: Final = "42501"
# The classes of PostgreSQL's own errors about objects and settings. A user's function, such as a trigger's, may raise
# anything, with a class of its own or one of these. Its error has the function as its context.
_OWN_WORDS: Final = (
    *("08", "0A", "0B", "20", "21", "24", "25", "26", "27", "28", "2B", "2D", "34", "3B", "3D", "3F", "40", "42", "53"),
    *("55", "57", "58", "72", "F0", "HV", "XX"),
)
_RETRY_AFTER_S: Final = 1.0
_HINTS: Final = {
    "25006": "the warehouse is read-only: give this sink the address of the primary, or end "
    "default_transaction_read_only of its user"
    " and database",
    "28": "check user and password of this sink",
    "3D": "create the database, or mend the address of this sink",
    "3F": "the schema was removed; rebuild it from the log: `lockstep rebuild SINK --switch`",
    "42501": "grant the sink's user CREATE and TEMPORARY on the database, and all rights on the schemas that it made",
    "42703": "a column was removed or renamed by hand; rebuild it: lockstep rebuild",
    "42P01": "a table or view was removed; rebuild it from the log: `lockstep rebuild SINK --switch`; where only its "
    "view was, restart the job",
    "2BP01": "something of yours depends on the view; recreate it after the switch",
    "53100": "the warehouse's disk is full: free space",
    "53400": "a limit of the server's was reached, as temp_file_limit: raise it for the sink's user",
    "53200": "the warehouse is out of memory",
    "58030": "the warehouse can't read or write its files: look at its log",
}
_BY_TRIGGER: Final = "a trigger of yours on the table keeps the row out, or changes it"
_OF_TRIGGER: Final = "a trigger of yours refuses what is written: mend it, or drop it"
# Without a connection there is no SQLSTATE, only the server's text.
_REFUSED_AT_THE_DOOR: Final = {
    "requires a valid client certificate": "set tls.certificate_file and tls.key_file of this sink to a"
    " certificate that the warehouse's authority has signed",
    "authentication failed": "check user and password of this sink",
    "no password supplied": "set login.password_file of this sink, or $LOCKSTEP_SINK_<NAME>_PASSWORD",
    "no pg_hba.conf entry": "allow this machine and user in the warehouse's pg_hba.conf, with TLS where it asks for it",
    "does not exist": "check database and user of this sink",
    "not permitted to log in": "alter the sink's user to LOGIN",
    "permission denied": "grant the user CONNECT on the database",
    "does not support SSL": "switch TLS on at the warehouse, or remove tls and sslmode from this sink",
    "could not translate host name": "check the address of this sink",
}
_UNTRUSTED: Final = ("certificate verify failed", "does not match host name")
# How a context begins that names a row of COPY, or a row's place in a relation.
_NO_FUNCTION: Final = ("COPY ", "while ")
_COPY_COLUMN = re.compile(r", column (?P<name>[^:\n]+)")


class RowChanged(Exception):
    """The table holds something else than was written. It is an error of a row, like the server's data errors."""


def state_of(error: BaseException) -> str:
    """The error's SQLSTATE; "" if the server sent none."""
    return getattr(_original(error), "sqlstate", None) or ""


def is_of_a_row(error: BaseException) -> bool:
    """Whether the row is at fault, and not the server."""
    return isinstance(error, RowChanged) or state_of(error).startswith(_ROW_CLASSES)


def reason_of(error: BaseException) -> str:
    """Why a row was refused: SQLSTATE, its name, the column. The server's own text would hold the value."""
    if isinstance(error, RowChanged):
        return _BY_TRIGGER
    original = _original(error)
    diagnostics: Any = getattr(original, "diag", None)
    column = None if _is_of_a_function(original) else getattr(diagnostics, "column_name", None)
    if column is None and not _is_of_a_function(original):
        match = _COPY_COLUMN.search(_context(original))
        column = match["name"] if match else None
    where = "" if column is None else f" in column {column!r}"
    return f"{state_of(error)} {type(original).__name__}{where}"


def too_many_refused(refused_max: int, reason: str) -> LockstepError:
    """The error for a batch with so many refused rows that the cause is elsewhere. ``reason`` is the first row's."""
    return LockstepError(
        f"the warehouse refuses more than {refused_max:,} rows of one batch, which isn't the rows' fault; the first"
        f" reason: {reason}",
        hint="mend what the reason says and start the job again: the batch is read again, nothing was skipped",
    )


def translated(error: BaseException) -> LockstepError:
    original = _original(error)
    state = state_of(error)
    if not state:
        words = str(original)
        ours = certificate_refused("the warehouse", original)
        if ours is not None:
            return ours
        if any(sign in words for sign in _UNTRUSTED):
            return untrusted(f"the warehouse ({_first_line(original)})", original)
        for sign, hint in _REFUSED_AT_THE_DOOR.items():
            if sign in words:
                return StoreRefuses(f"the warehouse refuses the connection: {words.strip()}", hint=hint)
        return Unavailable(f"the warehouse doesn't answer: {_first_line(original)}", retry_after_s=_RETRY_AFTER_S)
    is_foreign = _is_of_a_function(original) or not state.startswith((*_OWN_WORDS, *_ROW_CLASSES))
    primary = getattr(getattr(original, "diag", None), "message_primary", None) or ""
    message = f"the warehouse refuses: {primary} ({state} {type(original).__name__})"
    if is_of_a_row(error) or is_foreign:  # their text may hold values
        message = f"the warehouse refuses: {reason_of(error)}"
    if state.startswith(_PASSING):
        return Unavailable(message, retry_after_s=_RETRY_AFTER_S)
    hint_of = next((hint for sign, hint in _HINTS.items() if state.startswith(sign)), None)
    if state.startswith(_OF_STORE):
        return StoreRefuses(message, hint=hint_of)
    if is_foreign:
        return LockstepError(message, hint=_OF_TRIGGER)
    return (PerhapsStoreRefuses if state == _INSUFFICIENT_PRIVILEGE else LockstepError)(message, hint=hint_of)


def _context(error: BaseException) -> str:
    """Where the error arose: a row of COPY, or functions with their statements. It may hold values."""
    return getattr(getattr(error, "diag", None), "context", None) or ""


def _is_of_a_function(error: BaseException) -> bool:
    """Whether a function raised it, or ran what did. True also for COPY of text with several lines."""
    return any(not line.startswith(_NO_FUNCTION) for line in _context(error).splitlines())


def _first_line(error: BaseException) -> str:
    """libpq's first line, which names the server's address."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _original(error: BaseException) -> BaseException:
    return getattr(error, "orig", None) or error
