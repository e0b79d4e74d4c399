"""The conversation of a client with a Postgres server, message by message, and which of its answers are lost.

A `Postgres` is what the conversations through one proxy have in common. It knows the backends at the other end, and can
*lose the answer to a statement*: executed, its transaction committed, and the connection cut before the client hears of
it. That is the failure which only a client that recognises its own work survives. (A conversation that is encrypted
passes unread.)
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

LENGTH_BYTES: Final = 4

IDLE: Final = b"I"
"""What ReadyForQuery says outside of a transaction."""


class Verdict(Enum):
    """What becomes of a message from the server."""

    PASS = "pass"
    DROP = "drop"
    CUT = "cut"
    """Not passed on, and the connection ends here."""


class Postgres:
    """What the conversations through one proxy have in common: whom they speak with, which answers are lost."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        """The statements whose answers were lost."""
        self.backends: set[int] = set()
        """The server's processes at the other end of the connections that exist now."""
        self._pattern: re.Pattern[str] | None = None
        self._every = 1
        self._met = 0

    def lose(self, pattern: str | None, *, every: int = 1) -> None:
        """Lose the answer to every so many-th statement that has this pattern, the first included; None: no more."""
        self._pattern = None if pattern is None else re.compile(pattern)
        self._every, self._met = every, 0

    def dooms(self, statement: str) -> bool:
        """Whether the answer to this statement, which is being executed, is to be lost."""
        if self._pattern is None or not self._pattern.search(statement):
            return False
        self._met += 1
        return self._met % self._every == 1 % self._every


class Conversation:
    """One client's conversation. Parse names a statement's text, Bind the statement that is executed, and the server's
    ReadyForQuery says whether that was its transaction; else the next COMMIT ends it, and that answer is the one to be
    lost. BackendKeyData, at the beginning, says which process answers."""

    def __init__(self, speech: Postgres) -> None:
        self._speech = speech
        self._statements: dict[bytes, str] = {}
        self._doomed: str | None = None
        """The statement whose answer is being lost."""
        self._uncommitted: str | None = None
        """The same, once its transaction is committed."""
        self._in_transaction = False
        self._backend: int | None = None

    def asked(self, kind: bytes, body: bytes) -> None:
        """The client has said this."""
        match kind, body.rstrip(b";\0"):
            case b"P", _:
                name, text, *_ = body.split(b"\0")
                self._statements[name] = text.decode(errors="replace")
            case b"B", _:
                _, name, *_ = body.split(b"\0", 2)
                statement = self._statements.get(name, "")
                if self._speech.dooms(statement):
                    self._doomed, self._uncommitted = (None, statement) if self._in_transaction else (statement, None)
            case b"Q", b"COMMIT":
                self._doomed, self._uncommitted = self._uncommitted, None
            case b"Q", b"ROLLBACK":
                self._uncommitted = None

    def answered(self, kind: bytes, body: bytes) -> Verdict:
        """The server has said this; whether the client is to hear it."""
        if kind == b"K":
            self._backend = int.from_bytes(body[:LENGTH_BYTES], "big")
            self._speech.backends.add(self._backend)
        if kind == b"Z":
            self._in_transaction = body != IDLE
        if self._doomed is None:
            return Verdict.PASS
        if kind != b"Z":
            return Verdict.DROP
        self._speech.lost.append(self._doomed)  # executed, and its transaction committed
        return Verdict.CUT

    def end(self) -> None:
        """The connection is gone."""
        if self._backend is not None:
            self._speech.backends.discard(self._backend)


class Messages:
    """Cuts a stream of bytes into messages: a letter, a length that counts itself, a body."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The messages that are complete with these bytes."""
        self._rest += data
        rest, at, found = self._rest, 0, []
        while len(rest) >= at + 1 + LENGTH_BYTES:
            body = at + 1 + LENGTH_BYTES
            end = at + 1 + int.from_bytes(rest[at + 1 : body], "big")
            if len(rest) < end:
                break
            found.append((bytes(rest[at : at + 1]), bytes(rest[body:end])))
            at = end
        del rest[:at]
        return found


def packed(kind: bytes, body: bytes) -> bytes:
    """A message as it goes over the wire."""
    return kind + (len(body) + LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big") + body
