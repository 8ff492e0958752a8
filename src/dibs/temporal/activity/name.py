"""The name of an activity's lock: a text with fields that are the activity's parameters."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from dibs import NameTemplate
from dibs.core.names import key_of
from dibs.errors import InvalidName


class LockName:
    """A name such as `"report:{day}"`, or `"tenant/{order.tenant}"` for a field of a dataclass.

    Values are as for `NameTemplate`: `str`, `bytes`, `int`, `UUID`, `date` or `Enum`, escaped so that
    none can make another's name. Raises `ValueError` for a field that is none of the activity's.
    """

    def __init__(self, template: str, function: Callable[..., Any]) -> None:
        try:
            self._template = NameTemplate(template)
        except InvalidName:
            raise
        except ValueError as error:
            raise ValueError(
                f"{template!r} is no name with fields ({error}): a field is written {{parameter}}, "
                "a brace that is none {{ or }}"
            ) from error
        self._signature = inspect.signature(function)
        known = list(self._signature.parameters)
        for field in self._template.fields:
            head, *rest = field.split(".")
            if head not in known or not all(part.isidentifier() for part in rest):
                told = ", ".join(each for each in known if each != "self") or "none"
                raise ValueError(
                    f"{template!r} names {field!r}, and {function.__qualname__} has no such parameter "
                    f"(it has: {told}; a field of one is written {{parameter.field}})"
                )

    def of(self, arguments: tuple[Any, ...]) -> str | bytes:
        """The name for these arguments, with `self` where the activity is a method.

        Raises `TypeError` for a value that makes no name, or an argument that hasn't such a field.
        """
        bound = self._signature.bind(*arguments)
        bound.apply_defaults()
        values = {each: _value(each, bound.arguments) for each in self._template.fields}
        return self._template.filled(values)


def _value(field: str, arguments: Mapping[str, Any]) -> object:
    head, *rest = field.split(".")
    value = arguments[head]
    for part in rest:
        try:
            value = value[part] if isinstance(value, Mapping) else getattr(value, part)
        except (AttributeError, KeyError):
            raise TypeError(f"{head} is a {type(value).__name__}, which has no {part}") from None
    return value


def full_name(application: str, name: str | bytes) -> str | bytes:
    """With the application in front, so that two applications' locks never meet.

    Raises `InvalidName` for one that is too long.
    """
    full: str | bytes = name
    if application:
        full = (
            f"{application}:{name}" if isinstance(name, str) else application.encode() + b":" + name
        )
    key_of("semaphore", full)
    return full
