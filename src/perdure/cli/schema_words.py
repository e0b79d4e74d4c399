"""A JSON schema in words, and an answer that fits it: what a person who is asked needs to know. Pure.

The words cover what types are turned into; of a schema by hand they say what they know, and the page shows it whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from perdure.core.answers import check_answer
from perdure.core.formats import NAIVE, NAIVE_TIME, ZONED
from perdure.errors import InvalidAnswer

DEPTH_MAX: Final = 4
CHOICES_MAX: Final = 12
EXAMPLES_MAX: Final = 5
"""Items of a list that is made up."""

Schema = Mapping[str, Any]

_FORMATS: Final = {
    "date-time": ("a time", "2026-12-01T09:00:00Z"),
    "date": ("a date", "2026-12-01"),
    "time": ("a time of day", "09:00:00"),
    "duration": ("a duration", "PT1H"),
    "uuid": ("a UUID", "123e4567-e89b-12d3-a456-426614174000"),
    "decimal": ("a decimal number, as text", "9.90"),
    "base64": ("bytes, as Base64 text", "AA=="),
    "email": ("an e-mail address", "me@example.com"),
    "uri": ("a URL", "https://example.com"),
}

_PLAIN: Final = {
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
}


def in_words(schema: Schema | None) -> str:
    """What an answer must be."""
    if schema is None:
        return "any JSON value, or a text"
    return _words(schema, schema, 0)


def example(schema: Schema | None) -> str | None:
    """An answer that fits, as JSON; None where none is found."""
    if schema is None:
        return None
    value = _example(schema, schema, 0)
    return json.dumps(value, ensure_ascii=False) if fits(schema, value) else None


def fits(schema: Schema | None, value: Any) -> bool:
    """Whether this is an answer."""
    try:
        check_answer(schema_text(schema), value)
    except InvalidAnswer:
        return False
    return True


def schema_text(schema: Schema | None) -> bytes | None:
    """The schema as it is recorded."""
    return None if schema is None else msgspec.json.encode(schema)


def _words(schema: Any, root: Schema, depth: int) -> str:
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping) or depth > DEPTH_MAX:
        return "what its schema says"
    if "const" in schema:
        return _value(schema["const"])
    if isinstance(choices := schema.get("enum"), list):
        return _choices(choices)
    for keyword in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(keyword), list):
            return " or ".join(dict.fromkeys(_words(part, root, depth + 1) for part in parts))
    match schema.get("type"):
        case list() as kinds:
            return " or ".join(_PLAIN.get(str(kind), str(kind)) for kind in kinds)
        case "string":
            return _text(schema)
        case "integer" | "number" as kind:
            return _PLAIN[kind] + _range(schema, "minimum", "maximum")
        case "array":
            items = schema.get("items")
            each = f", each item {_words(items, root, depth + 1)}" if isinstance(items, Mapping) else ""
            return f"a list{_range(schema, 'minItems', 'maxItems', ' items')}{each}"
        case "object":
            return _object(schema, root, depth)
        case str() as kind:
            return _PLAIN.get(kind, kind)
        case _:
            return "what its schema says"


def _object(schema: Schema, root: Schema, depth: int) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return "an object"
    required = schema.get("required", [])
    must: list[str] = []
    may: list[str] = []
    for name, part in properties.items():
        field = _resolved(part, root)
        default = f"; {_value(field['default'])} if left out" if _has_default(field) and name not in required else ""
        (must if name in required else may).append(f"{name} ({_words(part, root, depth + 1)}{default})")
    told = [f"with {', '.join(must)}"] if must else []
    told += [f"perhaps with {', '.join(may)}"] if may else []
    return f"an object {', '.join(told)}"


_ZONES: Final = {ZONED: " with its offset from UTC", NAIVE: " without an offset", NAIVE_TIME: " without an offset"}
"""Of times, by the pattern that asks for it."""


def _text(schema: Schema) -> str:
    what = _FORMATS.get(str(schema.get("format", schema.get("contentEncoding", ""))), ("a text", ""))[0]
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        what += _ZONES.get(pattern, f" that matches {pattern}")
    return what + _range(schema, "minLength", "maxLength", " characters")


def _range(schema: Schema, least: str, most: str, unit: str = "") -> str:
    low, high = schema.get(least), schema.get(most)
    if low is not None and high is not None:
        span = str(low) if low == high else f"{low} to {high}"
        return f" of {span}{unit}" if unit else f" from {span}"
    if low is not None:
        return f", {low}{unit} or more"
    return "" if high is None else f", {high}{unit} at most"


def _choices(choices: list[Any]) -> str:
    shown = [_value(choice) for choice in choices[:CHOICES_MAX]]
    more = f" or one of {len(choices) - CHOICES_MAX} more" if len(choices) > CHOICES_MAX else ""
    return " or ".join(shown) + more


def _example(schema: Any, root: Schema, depth: int) -> Any:
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping) or depth > DEPTH_MAX:
        return None
    if "const" in schema:
        return schema["const"]
    for keyword in ("examples", "enum"):
        if isinstance(values := schema.get(keyword), list) and values:
            return values[0]
    for keyword in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(keyword), list) and parts:
            return _example(parts[0], root, depth + 1)
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) and kind else kind:
        case "boolean":
            return True
        case "string":
            return _FORMATS.get(str(schema.get("format", schema.get("contentEncoding", ""))), ("", "text"))[1]
        case "integer" | "number":
            return schema.get("minimum", schema.get("maximum", 1))
        case "array":
            return [_example(schema.get("items"), root, depth + 1)] * min(schema.get("minItems", 1), EXAMPLES_MAX)
        case "object":
            properties = schema.get("properties", {})
            return {name: _example(properties.get(name), root, depth + 1) for name in schema.get("required", [])}
        case _:
            return None


def _resolved(schema: Any, root: Schema) -> Any:
    """What a reference within the schema leads to."""
    for _ in range(DEPTH_MAX):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        found: Any = root
        for part in reference.removeprefix("#").strip("/").split("/"):
            found = found.get(part) if isinstance(found, Mapping) and part else found
        schema = found
    return schema


def _has_default(schema: Any) -> bool:
    return isinstance(schema, Mapping) and "default" in schema


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
