"""The billing service that the demo's agents charge: `python -m perdure.demo.billing`, in a process of its own.

A provider as they are. `POST /charges` charges an account once for each `Idempotency-Key`: the charge is appended to
the book and on disk before it is answered, and the same key again is answered from the book. `GET /charges/KEY` says
whether a key was charged, and waits where it is just being. Now and then the work is done and the answer is lost: the
connection is closed instead. The book is its own witness. It knows nothing of perdure, and perdure nothing of it.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import click

LOSE_EVERY: Final = 7
LOSE_FIRST: Final = 3
"""The answers to the third new charge and to every seventh from there on are lost: a small demo has one, too."""

WORK_MS: Final = (10, 40)
"""How long the service is at a charge."""

BODY_BYTES_MAX: Final = 10_000
QUEUE: Final = 128
"""Connections that wait to be accepted."""

CLIENT_TIMEOUT_S: Final = 30.0


class Entry(StrEnum):
    """What a line of the book is about."""

    CHARGE = "charge"
    REPEAT = "repeat"
    """A key that had been charged came again, and was answered from the book."""
    LOST = "lost"
    """The answer to this key's charge is about to be lost."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the book."""

    entry: Entry
    key: str
    account: str
    cents: int
    receipt: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the service answers."""

    receipt: str
    cents: int


# -- the service ----------------------------------------------------------------------------------------------------


class Book:
    """All charges, in memory and in the file."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.charges: dict[str, Line] = {line.key: line for line in read_book(path) if line.entry is Entry.CHARGE}
        self.changed = threading.Condition()
        self.at_work: set[str] = set()

    @contextmanager
    def alone_at(self, key: str) -> Iterator[None]:
        """One request at a time is at a key."""
        with self.changed:
            self.changed.wait_for(lambda: key not in self.at_work)
            self.at_work.add(key)
        try:
            yield
        finally:
            with self.changed:
                self.at_work.discard(key)
                self.changed.notify_all()

    def charge(self, key: str, account: str, cents: int) -> Line:
        """Charge; on disk when this returns."""
        with self.changed:
            line = Line(Entry.CHARGE, key, account, cents, f"receipt {len(self.charges) + 1}")
            self.note(line)
            os.fsync(self.file)
            self.charges[key] = line
            return line

    def note(self, line: Line) -> None:
        """One line, at once."""
        os.write(self.file, (json.dumps(asdict(line)) + "\n").encode())


class Service(ThreadingHTTPServer):
    """The server, and how badly it behaves."""

    daemon_threads = True
    request_queue_size = QUEUE

    def __init__(self, book: Book, *, lose_every: int, hold_s: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.book = book
        self.lose_every = lose_every
        self.hold_s = hold_s
        """How long the first charge's answer is held back."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def loses(self, number: int) -> bool:
        """Whether the answer to the charge of this number is lost."""
        return self.lose_every > 0 and number % self.lose_every == LOSE_FIRST % self.lose_every


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Service

    def do_POST(self) -> None:
        key = self.headers.get("Idempotency-Key")
        wanted = self._body()
        if not key or wanted is None or self.path != "/charges":
            return self._answer(400, {"error": "POST /charges wants an Idempotency-Key, an account and cents"})
        book = self.server.book
        with book.alone_at(key):
            old = book.charges.get(key)
            if old is None:
                time.sleep(random.uniform(*WORK_MS) / 1000)  # the work of a provider takes its time
                line = book.charge(key, *wanted)
        if old is None:
            return self._first_answer(line)
        book.note(Line(Entry.REPEAT, key, *wanted, old.receipt))
        if (old.account, old.cents) != wanted:
            return self._answer(422, {"error": "this key was used for another charge"})
        return self._answer(200, asdict(Receipt(old.receipt, old.cents)))

    def do_GET(self) -> None:
        key = unquote(self.path.removeprefix("/charges/"))
        with self.server.book.alone_at(key):
            line = self.server.book.charges.get(key)
        if line is None:
            return self._answer(404, {"error": "no charge has this key"})
        return self._answer(200, asdict(Receipt(line.receipt, line.cents)))

    def _first_answer(self, line: Line) -> None:
        """The charge is made; its answer may come late, or never."""
        number = int(line.receipt.split()[1])
        if number == 1:
            time.sleep(self.server.hold_s)  # so that somebody can kill whoever waits for it
        if not self.server.loses(number):
            self._answer(201, asdict(Receipt(line.receipt, line.cents)))
            return
        self.server.book.note(Line(Entry.LOST, line.key, line.account, line.cents, line.receipt))
        self.close_connection = True
        with suppress(OSError):  # whoever is not there any more has lost it by himself
            self.connection.shutdown(socket.SHUT_RDWR)

    def _body(self) -> tuple[str, int] | None:
        """Whom to charge, and how much; None where it does not say."""
        try:
            size = int(self.headers.get("Content-Length", ""))
            body = json.loads(self.rfile.read(size)) if 0 < size <= BODY_BYTES_MAX else None
        except ValueError:
            return None
        match body:
            case {"account": str(account), "cents": int(cents)} if cents > 0:
                return account, cents
            case _:
                return None

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        payload = json.dumps(body).encode()
        with suppress(ConnectionError):  # who asked was killed: that is what the demo is about
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the book says it all."""


@click.command("billing")
@click.option("--book", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Where the charges are.")
@click.option("--address", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Where its URL is put.")
@click.option("--lose-every", type=int, default=LOSE_EVERY, show_default=True, help="0: it never loses an answer.")
@click.option("--hold-s", type=float, default=0.0, help="The first charge's answer comes so much later.")
def main(*, book: Path, address: Path, lose_every: int, hold_s: float) -> None:
    """Serve on a free port of the loopback until a signal comes."""
    service = Service(Book(book), lose_every=lose_every, hold_s=hold_s)
    half = address.with_suffix(".new")
    half.write_text(service.url, "utf-8")
    half.replace(address)
    service.serve_forever()


# -- its clients ----------------------------------------------------------------------------------------------------


class Declined(Exception):
    """The service answered that it did not charge; the status says why."""

    def __init__(self, status_code: int, text: str) -> None:
        super().__init__(f"the billing service answered {status_code}: {text}")
        self.status_code = status_code


def charge(url: str, key: str, account: str, cents: int) -> Receipt:
    """Charge an account; the same key again charges nothing."""
    status, body = request(url, "POST", "/charges", {"account": account, "cents": cents}, key=key)
    if status not in (200, 201):
        raise Declined(status, body.get("error", ""))
    return Receipt(**body)


def find(url: str, key: str) -> Receipt | None:
    """The receipt of this key's charge; None where there was none."""
    status, body = request(url, "GET", f"/charges/{quote(key)}")
    if status == 404:
        return None
    if status != 200:
        raise Declined(status, body.get("error", ""))
    return Receipt(**body)


def request(
    url: str, method: str, path: str, body: dict[str, Any] | None = None, *, key: str | None = None
) -> tuple[int, dict[str, Any]]:
    """One request on a connection of its own: status and answer."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=CLIENT_TIMEOUT_S)
    headers = {} if key is None else {"Idempotency-Key": key}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


# -- its book -------------------------------------------------------------------------------------------------------


def read_book(path: Path) -> list[Line]:
    """All whole lines so far."""
    if not path.exists():
        return []
    whole = path.read_bytes().rpartition(b"\n")[0]
    lines = [json.loads(line) for line in whole.split(b"\n") if line]
    return [Line(**{**line, "entry": Entry(line["entry"])}) for line in lines]


if __name__ == "__main__":
    main()
