"""Names made from a function's arguments: `"report:{day}"`."""

import inspect
from collections.abc import Callable, Collection, Mapping
from datetime import date
from enum import Enum
from string import Formatter
from typing import Any
from uuid import UUID

from dibs.core.names import key_of, utf8

_ESCAPES = ((b"%", b"%25"), (b":", b"%3A"), (b"/", b"%2F"))  # the escape itself first


class NameTemplate:
    """A name with fields that are a function's parameters, or whatever else has names and values.

    A field's value may be a `str`, `bytes`, `int`, `UUID`, `date` or `Enum`, and nothing else, since
    others have no text of their own that is the same in every process. `%`, `:` and `/` in a value are
    escaped, so that no value can make the name of another resource. As in every name, a `str` is its
    UTF-8; bytes that are none make the whole name bytes.
    """

    def __init__(self, template: str, function: Callable[..., Any] | None = None) -> None:
        self._parts: list[tuple[str, str | None]] = []
        for text, field, spec, conversion in Formatter().parse(template):
            if spec or conversion:
                raise ValueError(f"{template!r}: a field is a parameter's name and nothing else")
            self._parts.append((text, field))
        self._template = template
        self.fields = tuple(field for _, field in self._parts if field is not None)
        if function is not None:
            self._signature = inspect.signature(function)
            self.check(self._signature.parameters, called(function))
        self._fixed: str | None = None
        if not self.fields:
            self._fixed = "".join(text for text, _ in self._parts)
            key_of("lock", self._fixed)  # raises here, rather than at every call

    def check(self, parameters: Collection[str], owner: str) -> None:
        """Raises `ValueError` for a field that is none of these parameters of `owner`."""
        for field in self.fields:
            if field not in parameters:
                known = ", ".join(parameters) or "none"
                raise ValueError(
                    f"{self._template!r} names {field!r}, and {owner} has no such "
                    f"parameter (it has: {known})"
                )

    def name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | bytes:
        """The name for one call of its function. Raises `TypeError` for a value that makes no name."""
        if self._fixed is not None:
            return self._fixed
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return self.filled(bound.arguments)

    def filled(self, values: Mapping[str, object]) -> str | bytes:
        """The name with these values. Raises `TypeError` for one that makes no name."""
        if self._fixed is not None:
            return self._fixed
        made = bytearray()
        for text, field in self._parts:
            made += text.encode()
            if field is not None:
                made += _escaped(_raw(values[field], field))
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
