"""Exit codes, and the one place where an error becomes a line on stderr."""

from __future__ import annotations

from enum import IntEnum
from typing import IO, Any

import click

from perdure.cli.remedies import told
from perdure.errors import Conflict, NotFound, PerdureError, StoreError, UsageError


class Exit(IntEnum):
    """What a script can rely on; `docs/reference/cli.md` has the same table."""

    OK = 0
    UNWELL = 1
    """The command worked; the thing it was asked about failed, is held, or is unwell."""
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    STORE = 5
    """The store cannot be reached or used; the same command may work later."""
    DEFECT = 70
    """An error that perdure did not foresee; its traceback is on stderr."""
    INTERRUPTED = 130


_CODES: tuple[tuple[type[PerdureError], Exit], ...] = (
    (UsageError, Exit.USAGE),
    (NotFound, Exit.NOT_FOUND),
    (Conflict, Exit.CONFLICT),
    (StoreError, Exit.STORE),
    (PerdureError, Exit.UNWELL),
)


class Failure(click.ClickException):
    """A foreseen error on its way out: `error: …` on stderr, and its code."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        self.code = code

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """What click exits with."""
        return self.code

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the line."""
        click.echo(f"error: {self.message}", err=True, file=file)


def failure(error: PerdureError) -> Failure:
    """The error as the command line shows it, in one line."""
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    return Failure(told(" ".join(str(error).split())), code)
