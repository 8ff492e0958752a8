"""When the body of a callable runs: during the call, as it is awaited, or later."""

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from dibs.primitives.template import called


def is_async(function: Callable[..., Any]) -> bool:
    """It is a coroutine function, a partial of one, or an object with an async `__call__`."""
    return any(inspect.iscoroutinefunction(each) for each in _bodies(function))


def refuse_generator(function: Callable[..., Any]) -> None:
    """Raises `TypeError` for what is no function, and for one whose body no lock could be around."""
    if isinstance(function, staticmethod | classmethod):
        kind = type(function).__name__
        raise TypeError(f"write @{kind} above @Lock.wraps(...), not below it")
    if not callable(function):
        raise TypeError(f"wraps decorates a function, and {function!r} is none")
    for each in _bodies(function):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise TypeError(
                f"{called(function)} is a generator: its body runs long after the call that "
                "made it, so a lock around the call would protect nothing; lock inside it"
            )


def refuse_late_body(function: Callable[..., Any], result: object) -> None:
    """Raises `TypeError` if what a plain call returned has its body still to run, without the lock."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        advice = "iterate inside the function, or lock inside the generator"
    elif inspect.isawaitable(result):
        advice = "decorate the `async def` itself, or await it inside the function"
    else:
        return
    # an asynchronous generator that hasn't begun holds nothing that would need closing
    if isinstance(result, Coroutine | Generator):
        result.close()
    elif callable(cancel := getattr(result, "cancel", None)):
        cancel()
    raise TypeError(
        f"{called(function)} returned a {type(result).__name__}, whose body would run with the lock "
        f"already released: {advice}"
    )


def _bodies(function: Callable[..., Any]) -> tuple[Any, ...]:
    """What a call runs: the callable, and the `__call__` of an object's type."""
    while isinstance(function, functools.partial):
        function = function.func
    return function, getattr(type(function), "__call__", None)  # noqa: B004  # not whether it has one
