"""The drivers that adapters are made of, imported when an adapter is made: nobody pays for what they do not use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from perdure.errors import UsageError


def driver(module: str, *, extra: str, what: str) -> Any:
    """The module; a `UsageError` names the extra where it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise
        raise UsageError(
            f"{what} needs the driver {package}: pip install 'perdure[{extra}]'.", missing=package
        ) from error
