"""Names made from a function's arguments: `"report:{day}"`."""

import inspect
from collections.abc import Callable
from datetime import date
from enum import Enum
from string import Formatter
from typing import Any
from uuid import UUID

from leasehold.core.names import key_of, utf8

_ESCAPES = ((b"%", b"%25"), (b":", b"%3A"), (b"/", b"%2F"))  # the escape itself first


class NameTemplate:
    """A name with fields that are a function's parameters.

    A field's value may be a `str`, `bytes`, `int`, `UUID`, `date` or `Enum`, and nothing else, since
    others have no text of their own that is the same in every process. `%`, `:` and `/` in a value are
    escaped, so that no value can make the name of another resource. As in every name, a `str` is its
    UTF-8; bytes that are none make the whole name bytes.
    """

    def __init__(self, template: str, function: Callable[..., Any]) -> None:
        self._signature = inspect.signature(function)
        self._parts: list[tuple[str, str | None]] = []
        for text, field, spec, conversion in Formatter().parse(template):
            if spec or conversion:
                raise ValueError(f"{template!r}: a field is a parameter's name and nothing else")
            if field is not None and field not in self._signature.parameters:
                known = ", ".join(self._signature.parameters) or "none"
                raise ValueError(
                    f"{template!r} names {field!r}, and {called(function)} has no such "
                    f"parameter (it has: {known})"
                )
            self._parts.append((text, field))
        self._fixed: str | None = None
        if all(field is None for _, field in self._parts):
            self._fixed = "".join(text for text, _ in self._parts)
            key_of("lock", self._fixed)  # raises here, rather than at every call

    def name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | bytes:
        """The name for one call. Raises `TypeError` for a value that makes no name."""
        if self._fixed is not None:
            return self._fixed
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        made = bytearray()
        for text, field in self._parts:
            made += text.encode()
            if field is not None:
                made += _escaped(_raw(bound.arguments[field], field))
        try:
            return made.decode()
        except UnicodeDecodeError:
            return bytes(made)


def called(function: Callable[..., Any]) -> str:
    """What to call a callable in a message; a partial, or an object with `__call__`, has no name."""
    return getattr(function, "__qualname__", None) or repr(function)


def _escaped(raw: bytes) -> bytes:
    for letter, escape in _ESCAPES:
        raw = raw.replace(letter, escape)
    return raw


def _raw(value: object, field: str) -> bytes:
    if isinstance(value, Enum):
        value = value.name
    if isinstance(value, bytes):
        return value
    if isinstance(value, date):
        return value.isoformat().encode()
    if isinstance(value, str):
        return utf8(value)
    if isinstance(value, UUID) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value).encode()
    raise TypeError(
        f"{field} is a {type(value).__name__}, which makes no name that is the same everywhere: "
        "pass a str, bytes, int, UUID, date or Enum"
    )
