"""Pydantic models, as the codec sees them; Pydantic itself is never imported here unless the user has done so.

A model is recorded as its fields, shallowly, and msgspec goes on with what is inside. A field that was never set and
still has its plain default is left out, so `model_fields_set` survives: clients that send only what was set (the
OpenAI SDK does) behave the same on a replay. Decoding validates by field name. Custom serializers are bypassed, since
they are made for display more often than for coming back; a validator must accept what it once returned.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, Final, get_args

from perdure.core.paths import SCALARS, a_type

_PLAIN: Final = frozenset((*SCALARS, list, tuple, dict, set, frozenset))
"""Types whose default can be told from a set value by comparing them."""

_NO_DEFAULT: Final = object()


def is_model(cls: object) -> bool:
    """Whether this is a class of Pydantic models (version 2)."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def mentions_pydantic(annotation: object) -> bool:
    """Whether a model, or one of Pydantic's own types, occurs in the annotation itself."""
    if is_model(annotation) or str(getattr(annotation, "__module__", "")).startswith("pydantic"):
        return True
    return any(mentions_pydantic(part) for part in get_args(annotation))


def model_fields(model: Any) -> Any:
    """What a model is recorded as: its set fields and extras in a dict; for a `RootModel`, the root."""
    cls: Any = type(model)
    values = model.__dict__
    if cls.__pydantic_root_model__:
        return values["root"]
    given = model.__pydantic_fields_set__
    fields = {
        key: values[name]
        for name, key, default in _fields(cls)
        if name in values and (name in given or not _is_default(values[name], default))
    }
    return {**fields, **model.__pydantic_extra__} if model.__pydantic_extra__ else fields


def _is_default(part: object, default: object) -> bool:
    return type(part) is type(default) and type(default) in _PLAIN and part == default


@lru_cache(maxsize=1024)
def _fields(cls: Any) -> tuple[tuple[str, str, object], ...]:
    """A model's fields: name, recorded key, default (for a required or made one, a value that nothing equals)."""
    by_name = "by_name" in _validation()
    return tuple(
        (name, name if by_name else _alias(field, name), _NO_DEFAULT if field.default_factory else field.default)
        for name, field in cls.model_fields.items()
    )


def _alias(field: Any, name: str) -> str:
    """The name under which an older Pydantic validates a field."""
    return field.validation_alias if isinstance(field.validation_alias, str) else field.alias or name


def encode_part(part: object) -> object:
    """A value of a type that only Pydantic knows (a URL, a path, an address) as JSON-shaped data."""
    import pydantic
    import pydantic_core

    if isinstance(part, pydantic.SecretStr | pydantic.SecretBytes):
        raise TypeError(f"{a_type(type(part))} would be recorded masked; pass secrets around records, not through")
    if isinstance(part, type) or callable(part):
        raise TypeError(f"{a_type(type(part))} is not data")
    return pydantic_core.to_jsonable_python(part)


def decode_model(cls: Any, data: object) -> object:
    """A model from its recorded form, validated."""
    import pydantic

    try:
        return cls.model_validate(data, **_validation())
    except pydantic.ValidationError as error:
        raise ValueError(describe(error)) from error


def adapter(annotation: Any) -> Any:
    """A function that validates builtins as the annotation, for what only Pydantic understands."""
    import pydantic

    validate: Any = pydantic.TypeAdapter[Any](annotation).validate_python
    options = _validation()

    def decode(data: object) -> object:
        try:
            return validate(data, **options)
        except pydantic.ValidationError as error:
            raise ValueError(describe(error)) from error

    return decode


def json_schema(annotation: Any) -> dict[str, Any]:
    """The JSON schema of what `decode_model` and `adapter` take. Raises `TypeError` for a type that has none."""
    import pydantic

    try:
        schema: dict[str, Any] = pydantic.TypeAdapter[Any](annotation).json_schema(
            by_alias="by_name" not in _validation()
        )
    except pydantic.errors.PydanticInvalidForJsonSchema as error:
        raise TypeError(str(error)) from error
    return schema


def describe(error: Any) -> str:
    """A validation error's first complaint, with its place, on one line."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in first["loc"])
    return f"{first['msg']} ({error.title}{place})"


@lru_cache(maxsize=1)
def _validation() -> dict[str, Any]:
    """How to validate by field name: since Pydantic 2.11 it can be asked for; before, aliases decide."""
    import pydantic

    major, minor = (int(part) for part in pydantic.VERSION.split(".")[:2])
    return {"strict": False, "by_name": True} if (major, minor) >= (2, 11) else {"strict": False}
