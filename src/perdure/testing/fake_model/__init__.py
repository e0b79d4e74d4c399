"""A stand-in for a language model: scripted, counted, and as unkind as real ones.

`FakeModel` answers by a script of a few words: `reply`, `tool`, `stream`, `error`, `overloaded`, `rate_limited`,
`timeout`, `disconnected`, `silence`, `slow`, `when`. It is a coroutine function, so it is a step's body as it stands;
`serve()` puts it behind an OpenAI-compatible endpoint on loopback, for real clients.

What makes it one for durable agents: a step's body may run *again*, after a crash or a failed try. A script that is
only a list is then off by one. So replies can be made to depend on who asks instead of on how often: on the request
(`by_request=True`, `when`), or on the step and its try (a script that is a dict).
"""

from __future__ import annotations

from perdure.testing.fake_model.errors import ModelRefused, ModelTimeout, ModelUnreachable, StreamBroken, Unscripted
from perdure.testing.fake_model.fake import Call, FakeModel, Request, Streaming
from perdure.testing.fake_model.words import (
    Reply,
    ToolCall,
    disconnected,
    error,
    overloaded,
    rate_limited,
    reply,
    silence,
    slow,
    stream,
    timeout,
    tool,
    when,
)

__all__ = [
    "Call",
    "FakeModel",
    "ModelRefused",
    "ModelTimeout",
    "ModelUnreachable",
    "Reply",
    "Request",
    "StreamBroken",
    "Streaming",
    "ToolCall",
    "Unscripted",
    "disconnected",
    "error",
    "overloaded",
    "rate_limited",
    "reply",
    "silence",
    "slow",
    "stream",
    "timeout",
    "tool",
    "when",
]
