"""Names made from a function's arguments: `"report:{day}"`."""

import inspect
from collections.abc import Callable
from datetime import date
from enum import Enum
from string import Formatter
from typing import Any
from uuid import UUID

_ESCAPED = str.maketrans({"%": "%25", ":": "%3A", "/": "%2F"})


class NameTemplate:
    """A name with fields that are a function's parameters.

    A field's value may be a `str`, `bytes`, `int`, `UUID`, `date` or `Enum`, and nothing else, since
    others have no text of their own that is the same in every process. `%`, `:` and `/` in a value are
    escaped, so that no value can make the name of another resource.
    """

    def __init__(self, template: str, function: Callable[..., Any]) -> None:
        self._signature = inspect.signature(function)
        self._parts = [(text, field) for text, field, _, _ in Formatter().parse(template)]
        self._template = template
        for _, field, spec, conversion in Formatter().parse(template):
            if field is None:
                continue
            if spec or conversion:
                raise ValueError(f"{template!r}: a field is a parameter's name and nothing else")
            if field not in self._signature.parameters:
                known = ", ".join(self._signature.parameters) or "none"
                raise ValueError(
                    f"{template!r} names {field!r}, and {function.__qualname__} has no such "
                    f"parameter (it has: {known})"
                )

    def name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The name for one call. Raises `TypeError` for a value that makes no name."""
        if len(self._parts) == 1 and self._parts[0][1] is None:
            return self._parts[0][0]
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        made = []
        for text, field in self._parts:
            made.append(text)
            if field is not None:
                made.append(_text(bound.arguments[field], field))
        return "".join(made)


def _text(value: object, field: str) -> str:
    if isinstance(value, Enum):
        value = value.name
    if isinstance(value, bytes):
        return value.decode("latin-1").translate(_ESCAPED)
    if isinstance(value, date):
        return value.isoformat().translate(_ESCAPED)
    if isinstance(value, str | UUID) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value).translate(_ESCAPED)
    raise TypeError(
        f"{field} is a {type(value).__name__}, which makes no name that is the same everywhere: "
        "pass a str, bytes, int, UUID, date or Enum"
    )
