"""An agent's or step's signature: which arguments it takes, of which types, and what it returns.

Arguments are recorded positionally where the signature allows, each by its parameter's codec, so the same call gives
the same bytes however it was written. Annotations are resolved one by one and only when they are needed: a name that
exists only under `TYPE_CHECKING` harms nothing until a value of that parameter is to be recorded.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from perdure.core.codec import Codec, codec_for, too_large
from perdure.core.limits import PAYLOAD_BYTES_MAX
from perdure.core.shown import shown
from perdure.errors import NotSerializable, PayloadTooLarge, UsageError

_Kind = inspect._ParameterKind
_POSITIONAL: Final = (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD)

_SHAPES_MAX: Final = 64
"""Shapes of calls (how many arguments by position, which by name) that are known to fit: looked at once each."""

_Raw = tuple[list[msgspec.Raw], dict[str, msgspec.Raw]]
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Raw).decode


class Signature:
    """What may be passed to a function; `Signature.of(fn)`."""

    def __init__(self, fn: Callable[..., Any], *, name: str, signature: inspect.Signature) -> None:
        self.name = name
        self.text = f"{name}{_readable(signature)}"
        self.params: Mapping[str, inspect.Parameter] = signature.parameters
        self._fn = fn
        self._signature = signature
        self._codecs: dict[str, Codec] = {}
        self._fitting: set[tuple[int | str, ...]] = set()
        self._positional = [param.name for param in self.params.values() if param.kind in _POSITIONAL]
        self._rest = next((param.name for param in self.params.values() if param.kind is _Kind.VAR_POSITIONAL), None)
        self._others = next((param.name for param in self.params.values() if param.kind is _Kind.VAR_KEYWORD), None)

    @classmethod
    def of(cls, fn: Callable[..., Any], *, skip: tuple[str, ...] = ("state",)) -> Signature:
        """The signature of a function, without the parameters in `skip`: those are not the caller's to give."""
        try:
            whole = inspect.signature(fn)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{shown(fn)} has no signature that Python can see: wrap it in a function.") from error
        params = [param for param in whole.parameters.values() if param.name not in skip]
        return cls(fn, name=function_name(fn), signature=whole.replace(parameters=params))

    def bind_encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The record of a call's arguments. Raises `UsageError` if they do not fit, `NotSerializable` if they are not
        of the declared types."""
        bound = self.bind(args, kwargs)
        return self.encode(bound.args, bound.kwargs)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Sort a call's arguments by this signature; defaults are not filled in."""
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(f"{self.text} was called with other arguments: {error}.", signature=self.text) from None

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The record of arguments that are bound already."""
        positional = [self._encoded(self._name_at(n), value, f"[{n}]") for n, value in enumerate(args)]
        named = {key: self._encoded(self._name_of(key), value, f".{key}") for key, value in kwargs.items()}
        data = _encode((positional, named))
        if len(data) > PAYLOAD_BYTES_MAX:
            raise too_large(len(data), PAYLOAD_BYTES_MAX)
        return data

    def decode(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a recorded call, each of its declared type. Raises `NotSerializable` if the function's
        signature has changed since, so that they no longer fit."""
        try:
            positional, named = _decode(data)
        except (msgspec.DecodeError, ValueError) as error:
            raise NotSerializable(f"Not the arguments of {self.text}: {error}.", path="$") from error
        args = tuple(self._decoded(self._name_at(n), raw) for n, raw in enumerate(positional))
        kwargs = {key: self._decoded(self._name_of(key), raw) for key, raw in named.items()}
        shape: tuple[int | str, ...] = (len(args), *kwargs)
        if shape not in self._fitting:
            self._check_fit(args, kwargs)
            if len(self._fitting) < _SHAPES_MAX:
                self._fitting.add(shape)
        return args, kwargs

    def _check_fit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise NotSerializable(f"The recorded call does not fit {self.text}: {error}.", path="$") from error

    def codec(self, param: str) -> Codec:
        """The codec of a parameter, `*args` and `**kwargs` included (of one value of them)."""
        codec = self._codecs.get(param)
        if codec is None:
            annotation = resolve(self._fn, self.params[param].annotation, what=f"parameter {param!r}")
            codec = self._codecs[param] = codec_for(annotation)
        return codec

    def _encoded(self, param: str, value: Any, step: str) -> msgspec.Raw:
        try:
            return msgspec.Raw(self.codec(param).encode(value))
        except NotSerializable as error:
            path = str(error.path).replace("$", f"${step}", 1)
            raise NotSerializable(f"Argument {param!r} of {self.text}: {error}", path=path, param=param) from error
        except PayloadTooLarge:
            raise
        except UsageError as error:
            raise UsageError(f"Parameter {param!r} of {self.text}: {error}", param=param) from error

    def _decoded(self, param: str, raw: msgspec.Raw) -> Any:
        return self.codec(param).decode(bytes(raw))

    def _name_at(self, position: int) -> str:
        if position < len(self._positional):
            return self._positional[position]
        return self._rest if self._rest is not None else self._misfit(f"{position + 1} arguments")

    def _name_of(self, key: str) -> str:
        if key in self.params and key not in (self._rest, self._others):
            return key
        return self._others if self._others is not None else self._misfit(f"an argument {key!r}")

    def _misfit(self, what: str) -> typing.Never:
        raise NotSerializable(f"The recorded call has {what}; the function is now {self.text}.", path="$")


class _Bare(str):
    """An annotation that is text, shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _readable(signature: inspect.Signature) -> inspect.Signature:
    """A signature that prints as its author wrote it."""

    def shown(annotation: Any) -> Any:
        return _Bare(annotation) if isinstance(annotation, str) else annotation

    params = [param.replace(annotation=shown(param.annotation)) for param in signature.parameters.values()]
    return signature.replace(parameters=params, return_annotation=shown(signature.return_annotation))


def function_name(fn: Callable[..., Any]) -> str:
    """What a callable is called: the name behind partials, methods and wrappers, else its class's."""
    inner = inspect.unwrap(fn.func if isinstance(fn, partial) else fn)
    return str(getattr(inner, "__name__", None) or type(inner).__name__)


def return_annotation(fn: Callable[..., Any]) -> Any:
    """The declared type of what a function returns, awaited; `Any` if it declares none. Only this annotation is
    resolved. Raises `UsageError` if a name in it cannot be found."""
    try:
        annotation = inspect.signature(fn).return_annotation
    except (TypeError, ValueError):
        return Any
    if annotation is inspect.Signature.empty:
        return Any
    annotation = resolve(fn, annotation, what="the return type")
    origin = typing.get_origin(annotation)
    if origin in (Awaitable, Coroutine):
        return typing.get_args(annotation)[-1]
    return annotation


def param_annotation(fn: Callable[..., Any], param: str) -> Any:
    """The declared type of one parameter; `Any` if it declares none, or there is no such parameter."""
    found = inspect.signature(fn).parameters.get(param)
    return Any if found is None else resolve(fn, found.annotation, what=f"parameter {param!r}")


def resolve(fn: Callable[..., Any], annotation: Any, *, what: str) -> Any:
    """An annotation of a function as a type, its strings evaluated where the function was written."""
    if annotation is inspect.Parameter.empty:
        return Any
    inner = _written(fn)
    names = {**getattr(inner, "__globals__", {}), **_enclosed(inner)}
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, globalns=names, localns=names, include_extras=True)["it"]
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise UsageError(
            f"The annotation of {what} of {function_name(fn)}, {annotation!r}, cannot be resolved: {error}. Import its "
            "names at run time, at module level, not only under TYPE_CHECKING; or declare returns=... on a step."
        ) from error


def _written(fn: Callable[..., Any]) -> Any:
    """The function as its author wrote it, below partials, wrappers, bound methods and callable objects."""
    while isinstance(fn, partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if not (inspect.isroutine(fn) or inspect.isclass(fn)):
        fn = inspect.unwrap(type(fn).__call__)
    return getattr(fn, "__func__", fn)


def _enclosed(fn: Any) -> dict[str, Any]:
    """Names of the enclosing functions that the function itself uses."""
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True) if inspect.isfunction(fn) else ()
    return {name: cell.cell_contents for name, cell in cells if _is_bound(cell)}


def _is_bound(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # not assigned yet
        return False
