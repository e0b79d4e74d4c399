"""What a test gives a step in place of its body: a value, a function of the step's arguments, or an exception."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any


async def answered(answer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an answer stands for: a function's result (awaited, if it is to be), an exception or a class of them raised,
    any other value as it is."""
    if isinstance(answer, type) and issubclass(answer, BaseException):
        raise answer
    if callable(answer):
        answer = answer(*args, **kwargs)
        if inspect.isawaitable(answer):
            answer = await answer
    if isinstance(answer, BaseException):
        raise answer
    return answer
