"""`perdure worker`: execute runs until a signal comes."""

from __future__ import annotations

import time
from typing import Any

import click

from perdure.cli.options import app_store_option
from perdure.cli.remedies import look_at
from perdure.cli.target import load_app
from perdure.errors import UsageError


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--concurrency", type=click.IntRange(1), help="Runs executed at a time.  [$PERDURE_CONCURRENCY, else 1000]"
)
@click.option(
    "--queue", "queues", multiple=True, help="Serve this queue; give it again for several.  [all of the app's]"
)
@click.option("--deployment", help="The code version that is served.  [$PERDURE_DEPLOYMENT, else from the app]")
@click.option("--name", help="A name for people.  [host:pid]")
@app_store_option
def worker(
    *,
    target: str,
    concurrency: int | None,
    queues: tuple[str, ...],
    deployment: str | None,
    name: str | None,
    store: str | None,
) -> None:
    """Execute runs of MODULE:APP until a signal comes.

    The first SIGTERM or SIGINT drains: nothing new is claimed, what is in hand is finished or given back. The second
    gives everything back at once.
    """
    from perdure.cli.logs import log_to_stderr
    from perdure.terminal.text import clean

    log_to_stderr()
    app = load_app(target, store=store)
    look_at(app.store_name)
    if not app.agents:
        raise UsageError(
            f"{target} has no agents: decorate one with @app.agent, and let the module import those that define them"
        )
    named = sorted({agent.settings.queue for agent in app.agents.values()})
    for queue in sorted(set(queues) - set(named)):
        click.echo(
            f"no agent of {target} names queue {clean(queue)}, only runs that are started with queue= go there; theirs "
            f"are: {clean(', '.join(named))}",
            err=True,
        )
    settings = {
        "concurrency": concurrency,
        "queues": list(queues) or named,
        "deployment": deployment,
        "name": name,
    }
    serve(app, settings)


def serve(app: Any, given: dict[str, Any]) -> None:
    """Serve, and say when it began and how it ended."""
    from perdure.client.serving import serve_until_signalled
    from perdure.core.records import worker_id
    from perdure.runtime.settings import worker_settings
    from perdure.telemetry import subscribe
    from perdure.terminal.text import clean, count, duration

    settings = worker_settings(**given)
    began = time.monotonic_ns()

    def started(worker: Any) -> None:
        label = f" ({clean(name)})" if (name := given["name"]) else ""
        agents = ", ".join(sorted(clean(agent) for agent in app.agents))
        queues = ", ".join(clean(queue) for queue in settings.queues)
        click.echo(f"{worker_id(worker.id)}{label} serves {agents} on queue {queues} of {app.store_name}")
        click.echo(
            f"deployment {clean(settings.deployment)}, up to {count(settings.concurrency, 'run')}; Ctrl-C drains it"
        )

    def heard(event: str, fields: dict[str, Any]) -> None:
        if event == "worker.draining" and fields["runs"]:
            click.echo(f"draining: {count(fields['runs'], 'run')} in hand; once more gives everything back at once")

    quiet = subscribe(heard)
    try:
        serve_until_signalled(app, settings, on_started=started)
    finally:
        quiet()
    click.echo(f"stopped after {duration((time.monotonic_ns() - began) // 1_000)}; nothing is left in hand")
