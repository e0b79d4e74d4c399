"""What SQLite's error codes mean here: try again, or call somebody."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from perdure.errors import StoreError, StoreUnavailable

PRIMARY_CODE: Final = 0xFF
"""The low byte of an extended result code is the primary one."""

_PASSING: Final = {
    sqlite3.SQLITE_BUSY: "another process keeps it locked; end that process, or try again",
    sqlite3.SQLITE_LOCKED: "another connection keeps it locked; try again",
    sqlite3.SQLITE_FULL: "the disk is full: make room and try again; nothing that was acknowledged is lost",
    sqlite3.SQLITE_IOERR: "the disk gives an I/O error; check its space, quota, file size limit and health",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that the file is still there, and the limit on open files",
    sqlite3.SQLITE_PROTOCOL: "its lock is contended; try again",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_INTERRUPT: "the operation was interrupted; try again",
}
_LASTING: Final = {
    sqlite3.SQLITE_READONLY: "it is read-only; make the file and its directory writable for this user",
    sqlite3.SQLITE_PERM: "this user may not use it; make the file and its directory writable for this user",
    sqlite3.SQLITE_CORRUPT: "it is damaged; stop all workers, then restore a backup or run `sqlite3 FILE .recover`",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database; give another path, or move the file away",
}

REFUSALS: Final = (sqlite3.IntegrityError, sqlite3.DataError, OverflowError, UnicodeEncodeError, TypeError)
"""One value is at fault, not the store: the others may be written."""


SUSPECT_ERRORS: Final = (*REFUSALS, sqlite3.InterfaceError, sqlite3.ProgrammingError)
"""Errors that may be refusals; `is_refusal` tells."""


def is_refusal(error: BaseException) -> bool:
    """Whether one bad value caused it. A value of an unknown type has an error class of its own in each Python."""
    unbound = isinstance(error, sqlite3.InterfaceError | sqlite3.ProgrammingError) and "binding" in str(error)
    return unbound or isinstance(error, REFUSALS)


def breaks_connection(error: BaseException) -> bool:
    """Whether the connection is better replaced than used again."""
    return primary_code(error) in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_CORRUPT)


def primary_code(error: BaseException) -> int:
    """SQLite's primary result code; 0 where the error is not SQLite's."""
    return getattr(error, "sqlite_errorcode", 0) & PRIMARY_CODE


def translate(error: BaseException, path: Path) -> BaseException:
    """The error as the store's callers know it. What is not the database's doing stays as it is."""
    code = primary_code(error)
    if code in _PASSING:
        return _caused(StoreUnavailable(f"{path}: {_PASSING[code]} ({error})", path=str(path)), error)
    if code in _LASTING:
        return _caused(StoreError(f"{path}: {_LASTING[code]} ({error})", path=str(path)), error)
    if isinstance(error, OSError):
        return _caused(StoreUnavailable(f"{path}: the system refuses ({error})", path=str(path)), error)
    if is_refusal(error):
        return _caused(StoreError(f"{path}: a value cannot be stored ({error})", path=str(path)), error)
    if isinstance(error, sqlite3.DatabaseError):
        return _caused(StoreError(f"{path}: {error}", path=str(path)), error)
    return error


def _caused(new: StoreError, cause: BaseException) -> StoreError:
    new.__cause__ = cause
    return new
