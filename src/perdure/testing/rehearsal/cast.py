"""The cast: the apps that are on stage, and the agents that its worker executes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeGuard

from perdure.app import App
from perdure.errors import UsageError
from perdure.runtime.agent import Agent
from perdure.runtime.settings import check_name
from perdure.runtime.sinks import Sink
from perdure.store.protocol import Store
from perdure.testing.rehearsal.backstage import Crossroads

Agents = Mapping[str, Agent[..., Any]]


class Cast:
    """The app that is rehearsed, and those that its agents and scenes use. Each has its store swapped while it is on
    stage; whatever happens, it gets it back."""

    def __init__(self, app: App, others: Iterable[App], store: Callable[[App], Store]) -> None:
        self.apps: list[App] = []
        self._store = store
        self._loans = ExitStack()
        self._guests = [other for other in others if other is not app]
        self._own: Agents = dict(app.agents)
        self._lead = app

    def __enter__(self) -> Cast:
        return self

    def __exit__(self, *error: object) -> None:
        self._loans.close()

    def enter(self, *apps: App) -> None:
        """Put apps on stage; one that is there already stays."""
        for app in apps:
            if any(app is each for each in self.apps):
                continue
            self._loans.enter_context(_lent(app, self._store(app)))
            self.apps.append(app)

    @property
    def agents(self) -> Agents:
        """What the worker executes."""
        return merged(self._own, self._guests)

    @property
    def sinks(self) -> dict[str, Sink]:
        """What its apps have registered; where two have a sink of one name, the rehearsed app's."""
        found: dict[str, Sink] = {}
        for app in (*self._guests, self._lead):
            found |= app.sinks
        return found

    @property
    def billing(self) -> str | None:
        """The sink of the rehearsed app's bills."""
        return self._lead.billing

    def recast(self, agents: object) -> None:
        """Let other agents take the place of the rehearsed app's own."""
        own = own_agents(agents)
        merged(own, self._guests)
        if isinstance(agents, App):
            self.enter(agents)
            self._guests = [guest for guest in self._guests if guest is not agents]
            self._lead = agents
        self._own = own


def merged(own: Agents, guests: Iterable[App]) -> Agents:
    """The agents of all, by name; a `UsageError` if two have one name."""
    found = dict(own)
    for guest in guests:
        for name, agent in guest.agents.items():
            if found.setdefault(name, agent) is not agent:
                raise UsageError(
                    f"two apps on one stage have an agent {name!r}, and the stage has one store; give app {guest.name} "
                    "a stage of its own, or its agent another name="
                )
    return found


def own_agents(agents: object) -> Agents:
    """The agents of an app, or these."""
    if isinstance(agents, App):
        if not agents.agents:
            raise UsageError(f"app {agents.name} has no agents to rehearse; decorate one with @app.agent")
        return dict(agents.agents)
    if not _is_agents(agents):
        raise UsageError(
            f"deploy takes an App, or a mapping such as app.agents from names to agents, with at least one: not "
            f"{agents!r}"
        )
    return dict(agents)


def check_apps(app: object, others: object) -> tuple[App, ...]:
    """The other apps; a `UsageError` for what is no app."""
    if not isinstance(app, App):
        raise UsageError(f"rehearse takes the App itself, such as rehearse(app), not {app!r}")
    found = tuple(others) if isinstance(others, Iterable) else (others,)
    for other in found:
        if isinstance(others, App) or not isinstance(other, App):
            raise UsageError(f"apps= takes a list of apps, such as apps=[other_app]; {other!r} is none")
    return found


def check_deployment(name: object) -> str:
    """The name of a version."""
    return check_name("a deployment's name", name)


def _is_agents(agents: object) -> TypeGuard[Agents]:
    return (
        isinstance(agents, Mapping)
        and bool(agents)
        and all(isinstance(name, str) and isinstance(agent, Agent) for name, agent in agents.items())
    )


@contextmanager
def _lent(app: App, store: Store) -> Iterator[None]:
    """Give the app this store until the block ends."""
    if isinstance(app._store, Crossroads):
        raise UsageError(f"app {app.name} is on a stage already; end that rehearsal first")
    url = app.store_url
    before = app.use_store(store)
    try:
        yield
    finally:
        app._store, app.store_url = before, url
        app._let_go_of_closed_loops()
