"""`MODULE:APP`: where an app is defined, as the command line names it.

The current directory comes first on `sys.path`, as with `python -m`. A module that is not there, a name that is not in
it, and a name that is no app are usage errors which say what there is instead; an error *inside* the module is the
module's own and shows its traceback, from the module on.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Final

from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.app import App


def load_app(target: str, *, store: str | None = None) -> App:
    """The app that `MODULE:APP` names, on another store than its own if one is given."""
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"{target!r} is not MODULE:APP; write for example {_module_of(module_name) or 'shop'}:app")
    if "/" in module_name or "\\" in module_name or module_name.endswith(".py"):
        raise UsageError(f"{module_name!r} is a file, not a module; write {_module_of(module_name)}:{attribute}")
    app = _app_in(_import(module_name), attribute)
    return app if store is None else _moved(app, store)


def _moved(app: App, store: str) -> App:

    app.use_store(store)
    return app


def _module_of(path: str) -> str:
    return path.removesuffix(".py").replace("\\", "/").strip("./").replace("/", ".")


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(missing + "."):
            raise  # The module is there; something that it imports is not.
        raise UsageError(f"no module named {missing!r} in {here} or on the Python path{_like(name)}") from error


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """The frames of a module that did not import, without those that led there; any other traceback whole."""
    inside, importing = trace, False
    while inside is not None:
        code = inside.tb_frame.f_code
        if importing and not code.co_filename.startswith("<frozen importlib") and code is not _IMPORT:
            return inside
        importing = importing or code is _import.__code__
        inside = inside.tb_next
    return None if importing else trace


_IMPORT: Final = importlib.import_module.__code__


def _like(name: str) -> str:
    there = [path.stem for path in Path.cwd().glob("*.py")]
    there += [path.parent.name for path in Path.cwd().glob("*/__init__.py")]
    close = difflib.get_close_matches(name.partition(".")[0], there, n=3)
    return f"; did you mean {' or '.join(close)}?" if close else "; run the command in the directory that holds it"


def _app_in(module: ModuleType, attribute: str) -> App:
    from perdure.app import App

    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"module {module.__name__!r} has no {attribute!r}{_instead(module, attribute, App)}")
        found = getattr(found, part)
    if isinstance(found, App):
        return found
    hint = _instead(module, attribute, App)
    raise UsageError(f"{module.__name__}:{attribute} is {_kind_of(found)}, not a perdure App{hint}")


def _kind_of(found: object) -> str:
    name = type(found).__name__
    return f"an {name}" if name[0] in "AEIOUaeiou" else f"a {name}"


def _instead(module: ModuleType, attribute: str, kind: type) -> str:
    apps = [name for name, value in vars(module).items() if isinstance(value, kind)]
    if apps:
        return f"; its apps are {', '.join(f'{module.__name__}:{name}' for name in sorted(apps))}"
    close = difflib.get_close_matches(attribute, [name for name in vars(module) if name[:1] != "_"], n=3)
    return f"; it defines no App (close names: {', '.join(close)})" if close else "; it defines no App"
