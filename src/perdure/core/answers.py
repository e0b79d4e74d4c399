"""Answers to questions: the schema they must fit, and the form in which they are compared and recorded.

A question's schema travels as JSON Schema, so that whoever answers (another process, a page, a person with a
terminal) needs nothing of the code that asked. A type is turned into one where the question is asked; a schema given
as a dict is checked there, so that it cannot be broken when somebody answers.

An answer is JSON-shaped data, or a value that has such a form (a dataclass, a model, a date). Answers that are equal as
JSON have the same canonical bytes: dicts in the order of their keys, whole numbers without a fraction. So giving the
same answer twice can be told from giving two.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final

import msgspec

from perdure.core import formats, models
from perdure.core.codec import UNDECLARED, codec_for
from perdure.core.declared import annotation_name, decode_custom
from perdure.core.digests import digest
from perdure.core.limits import SCHEMA_BYTES_MAX
from perdure.core.paths import SUBCLASSED, a_type, locate, scalar
from perdure.core.patterns import WORK_MAX, pattern_of
from perdure.core.shown import did_you_mean, shown
from perdure.errors import InvalidAnswer, NotSerializable, UsageError

_REFUSED: Final = (TypeError, ValueError, OverflowError, RecursionError)

_WHOLE_MAX: Final = 2.0**53
"""Up to here a float names one whole number."""

_STRANGE_MAX: Final = 3
"""Unknown fields of an answer that a message names."""

_NAME_CHARS_MAX: Final = 128
"""Of a field's name that is looked for among those there are."""

_SHOWN_CHARS_MAX: Final = 200
"""Of an answer, or of what was expected, in a message."""

_DATA: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are no schemas."""


# -- where a question is asked --------------------------------------------------------------------------------------


def schema_bytes(schema: Any) -> bytes | None:
    """The JSON schema of an answer, as JSON text, from a type or from a schema in a dict; None where anything will do.

    Raises `UsageError` for a type whose values cannot be recorded, or a dict that is no JSON schema.
    """
    if schema is None or schema is Any or schema is object:
        return None
    if not isinstance(schema, dict):
        _check_is_type(schema)
        of_type = _schema_of_type(schema)
        _close(of_type)
        _check_patterns(of_type)
        return _schema_text(of_type, annotation_name(schema))
    text = _schema_text(schema, "the dict")
    _check_schema(msgspec.json.decode(text))
    return text


def _check_patterns(schema: dict[str, Any]) -> None:
    try:
        for pattern in patterns_in(schema):
            pattern_of(pattern)
    except UsageError as error:
        raise UsageError(f"schema= cannot be used: {error}") from None
    for part in _dicts(schema):
        try:
            re.compile("|".join(_of_names(part)))  # as jsonschema looks for the names that fit none of them
        except re.error as error:
            raise UsageError(
                f'schema= cannot be used: its "patternProperties" are no pattern when joined by "|": {error}. '
                "Put flags into groups, as in (?i:...), and name groups apart."
            ) from error


def payload_digest(payload: bytes) -> str:
    """What names the content that is being approved: the digest of the encoded payload of a question, in hex."""
    return digest(payload).hex()


def _check_is_type(schema: Any) -> None:
    """Text and plain values are what people give who have seen other libraries: they are told what it takes."""
    if isinstance(schema, str | int | float | list | tuple | set):
        raise UsageError(
            f"schema={shown(schema)} is no schema of an answer. Give a type, such as bool, Literal['yes', 'no'] or a "
            'dataclass, or a JSON schema in a dict, such as {"type": "boolean"} or {"enum": ["yes", "no"]}.'
        )


def _schema_text(schema: Any, source: str) -> bytes:
    try:
        text = msgspec.json.encode(schema)
    except _REFUSED as error:
        raise UsageError(f"schema={source} cannot be written as JSON: {error}. Give plain data.") from error
    if len(text) > SCHEMA_BYTES_MAX:
        raise UsageError(
            f"schema={source} has {len(text):,} bytes as JSON, the limit is {SCHEMA_BYTES_MAX:,}. Ask for less at once."
        )
    return text


def _schema_of_type(annotation: Any) -> dict[str, Any]:
    codec_for(annotation)  # which refuses a type whose values cannot be recorded
    if models.mentions_pydantic(annotation):
        return models.json_schema(annotation)
    definitions: dict[str, Any] = {}

    def of_model(cls: type) -> dict[str, Any]:
        inner = models.json_schema(cls)
        definitions.update(inner.pop("$defs", {}))
        return inner

    schema = msgspec.json.schema(annotation, schema_hook=of_model)
    formats.add_formats(schema, annotation)
    if definitions:
        schema["$defs"] = {**definitions, **schema.get("$defs", {})}
    return schema


def _close(schema: dict[str, Any]) -> None:
    """A type has the fields that it has: a misspelt one would be lost without a word, and the first answer wins. A
    model that itself allows others says so in its schema."""
    for part in _parts(schema):
        if part.get("type") == "object" and isinstance(part.get("properties"), dict):
            part.setdefault("additionalProperties", False)


def _check_schema(schema: dict[str, Any]) -> None:
    from jsonschema.exceptions import SchemaError

    if not isinstance(schema.get("$schema", ""), str):
        raise UsageError(
            f'schema= has "$schema": {schema["$schema"]!r}, which must be the address of a dialect as text'
        )
    try:
        _kind_of(schema).check_schema(schema)
    except RecursionError as error:
        raise UsageError("schema= is nested too deeply to be checked. Ask for less at once.") from error
    except SchemaError as error:
        raise UsageError(
            f"schema= is not a JSON schema, at {error.json_path}: {_short(error.message)}. Correct it, or give a type "
            "such as bool, Literal['yes', 'no'] or a dataclass."
        ) from error
    _check_patterns(schema)
    _check_references(schema)


def _check_references(schema: dict[str, Any]) -> None:
    """Every `$ref` leads somewhere now: nothing is fetched when somebody answers."""
    from jsonschema_specifications import REGISTRY
    from referencing import Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    if any("$id" in part for part in _parts(schema) if part is not schema):
        return  # with bases of their own: told when they are used
    resource: Any = Resource.from_contents(schema, default_specification=DRAFT202012)
    base = resource.id() or ""
    resolver = REGISTRY.with_resource(base, resource).resolver(base)
    for part in _parts(schema):
        reference = part.get("$ref")
        if not isinstance(reference, str):
            continue
        try:
            resolver.lookup(reference)
        except Unresolvable as error:
            raise UsageError(
                f"schema= refers to {reference!r}, which is not in it: nothing is fetched from elsewhere. Put it under "
                '"$defs".'
            ) from error


def patterns_in(schema: Any) -> Iterator[str]:
    """The patterns in a schema, and what only looks like one."""
    for part in _dicts(schema):
        if isinstance(part.get("pattern"), str):
            yield part["pattern"]
        yield from _of_names(part)


def _of_names(part: dict[str, Any]) -> Iterator[str]:
    found = part.get("patternProperties")
    if isinstance(found, dict):
        yield from found


def _dicts(data: Any) -> Iterator[dict[str, Any]]:
    """Every dict in it."""
    todo = [data]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            yield part
            todo += part.values()
        elif isinstance(part, list | tuple):
            todo += part


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and every dict inside it that may be one."""
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            yield part
            todo += [inner for name, inner in part.items() if name not in _DATA]
        elif isinstance(part, list):
            todo += part


# -- where it is answered -------------------------------------------------------------------------------------------


def check_answer(schema: bytes | None, value: Any) -> None:
    """Raises `InvalidAnswer`, with `path` and with what was expected there, for an answer that does not fit."""
    if schema is None:
        return
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    data = _plain(value, binary=False)
    work = _Work()
    work.spend_on_names(schema, data)
    spending = _work.set(work)
    try:
        error: Any = best_match(_validator(schema).iter_errors(data))
        error = None if error is None else _of_the_branch_meant(error)
    except (RecursionError, Unresolvable) as failed:
        why = "it is nested too deeply" if isinstance(failed, RecursionError) else f"the schema has a hole: {failed}"
        raise InvalidAnswer(f"the answer cannot be checked: {why}.", path="$") from failed
    finally:
        _work.reset(spending)
    if error is not None:
        expected = {error.validator: error.validator_value}
        said, wanted = _unknown_field(error) or (error.message, msgspec.json.encode(expected).decode())
        raise InvalidAnswer(
            f"the answer does not fit the question at {error.json_path}: {_short(said)}. "
            f"Expected there: {_short(wanted)}. The question stays open.",
            path=error.json_path, expected=expected,
        )  # fmt: skip


def _of_the_branch_meant(error: Any) -> Any:
    """Among alternatives that all refuse an answer: the complaint of the one that only has no such field."""
    choice = error.parent
    while choice is not None and choice.validator not in ("anyOf", "oneOf"):
        choice = choice.parent
    if choice is None:
        return error
    branches: dict[int, list[Any]] = {}
    for each in choice.context:
        branches.setdefault(each.schema_path[0], []).append(each)
    meant = [first for first, *rest in branches.values() if not rest and _unknown_field(first) is not None]
    return meant[0] if len(meant) == 1 else error


def _unknown_field(error: Any) -> tuple[str, str] | None:
    """For fields that a closed object does not have: which, with the nearest one that it has; and those it has."""
    if error.validator != "additionalProperties" or error.validator_value is not False:
        return None
    known, patterns = error.schema.get("properties", {}), error.schema.get("patternProperties", {})
    if patterns or not known:
        return None
    strange = [name for name in error.instance if name not in known]
    said = "; ".join(_misspelt(name, list(known)) for name in strange[:_STRANGE_MAX])
    more = f"; and {len(strange) - _STRANGE_MAX} more" if len(strange) > _STRANGE_MAX else ""
    return said + more, f"no other fields than {', '.join(known)}"


def _misspelt(name: str, known: list[str]) -> str:
    return f"there is no field {shown(name)}{did_you_mean(name[:_NAME_CHARS_MAX], known)}"


def unknown_fields(annotation: Any, data: Any) -> str | None:
    """Fields somewhere in JSON-shaped data that the declared type does not have, in a sentence; None where there are
    none. What else is wrong with the data is not looked at: decoding it has said so."""
    if not any(_dicts(data)):
        return None
    try:
        schema = _schema_of_type(annotation)
    except TypeError:  # keys that JSON has not, say: then there is nothing to compare with
        return None
    _close(schema)
    for error in _without_patterns()(schema).iter_errors(data):
        meant: Any = error if error.validator == "additionalProperties" else _innermost(error)
        if (found := _unknown_field(meant)) is not None:
            said, wanted = found
            return f"{_short(said)}, at {meant.json_path}; it takes {_short(wanted)}"
    return None


def _innermost(error: Any) -> Any:
    from jsonschema.exceptions import best_match

    return _of_the_branch_meant(best_match([error]))


class _Work:
    """What the patterns of one answer's schema may cost still."""

    def __init__(self) -> None:
        self.left = WORK_MAX

    def spend(self, pattern: str, text: str) -> None:
        """Before a text is held to a pattern. Raises `InvalidAnswer` where that could take for ever."""
        try:
            self.left -= pattern_of(pattern).work(len(text))
        except UsageError as error:
            raise InvalidAnswer(f"the answer cannot be checked: {error}", path="$") from error
        if self.left < 0:
            raise InvalidAnswer(
                f"the answer has too much text for the question's patterns: to hold {len(text):,} characters to "
                f"{_short(repr(pattern))} could take for ever. Give less. The question stays open.",
                path="$", expected={"pattern": pattern},
            )  # fmt: skip

    def spend_on_names(self, schema: bytes, data: Any) -> None:
        """Where a schema has patterns of names: for all of them, and all names."""
        if b'"patternProperties"' not in schema:
            return
        patterns = [pattern for part in _dicts(msgspec.json.decode(schema)) for pattern in _of_names(part)]
        for part in _dicts(data):
            for name in part:
                for pattern in patterns:
                    self.spend(pattern, name)


_work: Final[ContextVar[_Work]] = ContextVar("perdure_answer_work")


def canonical_bytes(value: Any) -> bytes:
    """The record of an answer, the same for equal ones; `decode_answer`, or any codec, reads it.

    Raises `NotSerializable`, with `path`, for what is no data, and `PayloadTooLarge`.
    """
    data = _plain(value, binary=True)
    try:
        return UNDECLARED.encode(_whole(data))
    except RecursionError as error:
        raise NotSerializable("the answer cannot be recorded: it is nested too deeply.", path="$") from error


def decode_answer(annotation: Any, payload: bytes) -> Any:
    """An answer as the type that was asked for (a schema in a dict, or None, asks for plain data).

    Where the answer came as JSON, what JSON has no form of is read from the one it is given there: bytes from Base64,
    keys of a dict from text. Raises `NotSerializable`, with `path`, if it is none of that type.
    """
    if annotation is None or isinstance(annotation, dict):
        return UNDECLARED.decode(payload)
    codec = codec_for(annotation)
    try:
        return codec.decode(payload)
    except NotSerializable:
        try:
            return msgspec.convert(UNDECLARED.decode(payload), annotation, str_keys=True, dec_hook=decode_custom)
        except _REFUSED:
            pass
        raise


def _plain(value: Any, *, binary: bool) -> Any:
    """An answer as JSON-shaped data, dicts in the order of their keys; `binary` leaves bytes and keys as they are."""
    try:
        return msgspec.to_builtins(
            value, builtin_types=(bytes,) if binary else None, str_keys=not binary, enc_hook=_stand_in, order="sorted"
        )
    except _REFUSED as error:
        found = locate(value, lambda part: msgspec.to_builtins(part, enc_hook=_stand_in))
        raise NotSerializable(
            f"the answer cannot be recorded at {found.path}: {found.reason}. Give JSON-shaped data.", path=found.path
        ) from error


def _stand_in(part: Any) -> Any:
    """The plain form of what msgspec does not know."""
    if models.is_model(type(part)):
        return models.model_fields(part)
    if isinstance(part, SUBCLASSED):
        return scalar(part)
    if "pydantic" in sys.modules:
        return models.encode_part(part)
    raise TypeError(f"{a_type(type(part))} is not data")


def _whole(data: Any) -> Any:
    """The same data with whole numbers as ints: JSON does not tell 1.0 from 1."""
    match data:
        case float() if data.is_integer() and abs(data) <= _WHOLE_MAX:
            return int(data)
        case dict():
            return {key: _whole(part) for key, part in data.items()}
        case list() | tuple():
            return [_whole(part) for part in data]
        case _:
            return data


# -- jsonschema, which is loaded when the first schema is used --------------------------------------------------------


def _kind_of(schema: dict[str, Any]) -> Any:
    from jsonschema import Draft202012Validator

    return _kind_named_in(schema) or Draft202012Validator


def _kind_named_in(schema: Any) -> Any:
    """The kind of validator for the dialect that a schema names; None for none, or one that nobody knows."""
    from jsonschema.validators import validator_for

    if not isinstance(schema, dict) or not isinstance(schema.get("$schema"), str):
        return None
    try:
        return validator_for(schema, default=None)
    except ValueError:
        return None  # no address of anything


@lru_cache(maxsize=1)
def _without_patterns() -> Any:
    """The kind of validator that holds no text to a pattern: what those may cost is not bounded here."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    return extend(Draft202012Validator, {"pattern": None})


@lru_cache(maxsize=16)
def _bounded(kind: Any) -> Any:
    """The same kind of validator, which looks at what a pattern may cost before it holds a text to it."""
    from attrs import fields
    from jsonschema.validators import extend

    search = kind.VALIDATORS["pattern"]

    def pattern(validator: Any, wanted: str, text: Any, schema: Any) -> Any:
        if isinstance(text, str):
            _work.get().spend(wanted, text)
        return search(validator, wanted, text, schema)

    def evolve(validator: Any, **changes: Any) -> Any:
        """The validator of a part: jsonschema's own would be without bounds where a part names a dialect."""
        named = _kind_named_in(changes.setdefault("schema", validator.schema))
        of_part = _bounded(named) if named else type(validator)
        for field in fields(of_part):
            if field.init and field.alias not in changes:
                changes[field.alias] = getattr(validator, field.name)
        return of_part(**changes)

    bounded = extend(kind, {"pattern": pattern})
    bounded.evolve = evolve
    return bounded


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Any:
    from jsonschema_specifications import REGISTRY

    document = msgspec.json.decode(schema)
    kind = _bounded(_kind_of(document))
    return kind(document, registry=REGISTRY, format_checker=_formats())


@lru_cache(maxsize=1)
def _formats() -> Any:
    from jsonschema import FormatChecker

    checker = FormatChecker(tuple(FormatChecker.checkers))
    for name, reads in formats.checks().items():
        checker.checks(name, raises=ValueError)(reads)
    return checker


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[: _SHOWN_CHARS_MAX - 3]}..."
