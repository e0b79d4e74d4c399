"""Where code is running: in an agent, in a step's body, or outside.

The current frame travels in a context variable. A task factory on the worker's loop gives each task that agent
code starts a child scope *when it is created*, so keys do not depend on the order in which branches run or
finish; it is composed with whatever factory the loop had. One trap is left: `asyncio.wait_for` starts a task on
Python 3.11 and none from 3.12 on, which is why the minor version is part of a deployment's name.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from perdure.core.keys import Scope
from perdure.errors import NotInRun

if TYPE_CHECKING:
    from perdure.core.meters import Meter
    from perdure.runtime.deadlines import Deadline
    from perdure.runtime.superstep import SuperStep


class AgentFrame:
    """Agent code: calls of steps are recorded, under keys of this scope."""

    __slots__ = ("coming", "scope", "super_step")

    def __init__(self, super_step: SuperStep, scope: Scope, coming: object = None) -> None:
        self.super_step = super_step
        self.scope = scope
        self.coming = coming
        """While the task that this frame is for is being made: its coroutine."""

    def child(self, coro: object) -> AgentFrame:
        """The frame of a task started here, now."""
        scope = self.scope.closing() if type(coro) is _CLOSING else self.scope.child()
        return AgentFrame(self.super_step, scope, coro)


class StepFrame:
    """The body of a step: calls of other steps are plain calls, part of this step's record."""

    __slots__ = (
        "attempt",
        "began_s",
        "deadline",
        "effect_key",
        "filed",
        "key",
        "meters",
        "name",
        "put_off",
        "super_step",
    )

    def __init__(
        self, super_step: SuperStep, name: str, key: str, attempt: int, effect_key: str | None = None,
        meters: list[Meter] | None = None,
    ) -> None:  # fmt: skip
        self.super_step = super_step
        self.name = name
        self.key = key
        self.attempt = attempt
        self.began_s = super_step.host.clock.monotonic()
        """On the worker's own clock, which nobody sets."""
        self.effect_key = effect_key
        """What the provider is to know it by, if it is an effect."""
        self.meters: list[Meter] = [] if meters is None else meters
        """What it has used so far."""
        self.filed = False
        """That is in a change, or may be: it is not to be filed once more."""
        self.put_off: list[tuple[Any, ...]] = []
        """Cancellations of a try that is seen to its end."""
        self.deadline: Deadline | None = None
        """When its try is to have ended."""


class BesideFrame(StepFrame):
    """What an effect has beside its body: its `undo`, or its `verify`."""

    __slots__ = ()

    def __init__(
        self, super_step: SuperStep, what: Literal["undo", "verify"], name: str, key: str, attempt: int,
        effect_key: str,
    ) -> None:  # fmt: skip
        super().__init__(super_step, f"{what}:{name}", key, attempt, effect_key)


def _closing_type() -> type:
    async def generator() -> AsyncGenerator[None]:
        yield

    closing = generator().aclose()
    closing.close()
    return type(closing)


_CLOSING = _closing_type()
"""What the event loop makes a task of when an async generator that was not exhausted is dropped."""

Frame = AgentFrame | StepFrame

frame: contextvars.ContextVar[Frame | None] = contextvars.ContextVar("perdure_frame", default=None)


def agent_frame(verb: str) -> AgentFrame:
    """The frame of the agent that calls `verb`; `NotInRun` elsewhere."""
    current = frame.get()
    if isinstance(current, AgentFrame):
        return current
    where = "inside a step's body" if isinstance(current, StepFrame) else "outside of an agent"
    raise NotInRun(f"perdure.{verb} was called {where}; call it in an agent's own code, while a worker runs it")


@contextmanager
def outside() -> Iterator[None]:
    """Leave the agent for a moment: a task that is started here belongs to no run, and outlives the one it is in."""
    token = frame.set(None)
    try:
        yield
    finally:
        frame.reset(token)


TaskFactory = Callable[..., "asyncio.Future[Any]"]


class ScopedTaskFactory:
    """A task factory that gives tasks of agent code their scope, on top of the loop's own factory."""

    def __init__(self, inner: TaskFactory | None) -> None:
        self.inner = inner

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Future[Any]:
        current = frame.get()
        # A coroutine that is coming has been seen by another of these, above this one.
        if not isinstance(current, AgentFrame) or current.coming is coro:
            return self._make(loop, coro, options)
        child = current.child(coro)
        options["context"] = _entered_copy(options.get("context"), child)
        task = self._make(loop, coro, options)
        child.coming = None
        current.super_step.adopt(task)
        return task

    def _make(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], options: dict[str, Any]
    ) -> asyncio.Future[Any]:
        if self.inner is None:
            return asyncio.Task(coro, loop=loop, **options)
        context = options.pop("context", None)
        if context is None:
            return self.inner(loop, coro, **options)
        # A factory of the older form takes no context; a task made inside one copies it.
        made: asyncio.Future[Any] = context.run(self.inner, loop, coro, **options)
        return made


def _entered_copy(context: contextvars.Context | None, child: AgentFrame) -> contextvars.Context:
    """The context for a new task with its frame set; a caller's own context stays its own, if it can."""
    if context is None:
        context = contextvars.copy_context()
    try:
        context.run(frame.set, child)
    except RuntimeError:  # the context that runs at this moment: it cannot be entered twice
        context = context.copy()
        context.run(frame.set, child)
    return context


def install_task_factory(loop: asyncio.AbstractEventLoop) -> None:
    """Put the scoping factory on the loop, on top of whatever others have put there; installing it twice is one."""
    inner = loop.get_task_factory()
    if not isinstance(inner, ScopedTaskFactory):
        loop.set_task_factory(ScopedTaskFactory(inner))  # type: ignore[arg-type]  # typeshed wants a generic result
