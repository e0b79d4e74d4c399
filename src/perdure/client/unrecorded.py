"""A word in the log to agents that use a client's verb where the agent's own is meant."""

from __future__ import annotations

from perdure.runtime.frames import AgentFrame, frame
from perdure.telemetry import logger


def warn_in_agents(verb: str, said: set[str]) -> None:
    """Once for each verb: what a client does is not recorded, so that a replay of the agent does it again."""
    if not isinstance(frame.get(), AgentFrame) or verb in said:
        return
    said.add(verb)
    logger.warning(
        "app.%s was called in an agent's own code, where it is not recorded: a replay does it again. Use perdure.%s "
        "there",
        verb, verb,
    )  # fmt: skip
