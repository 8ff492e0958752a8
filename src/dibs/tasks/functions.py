"""The functions that are tasks: which can be, what they are called, and how they are called."""

import asyncio
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

type Function = Callable[[], Any]


def is_async(function: Function) -> bool:
    """It is a coroutine function, a partial of one, or an object with an async `__call__`."""
    return _is(inspect.iscoroutinefunction, function)


def check_function(function: object) -> None:
    """Raises `TypeError` for what can't be a task."""
    if not callable(function):
        raise TypeError(f"a task is a function without arguments, and {function!r} is none")
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise TypeError(f"{called(function)} is a generator, whose body nobody would run")
    try:
        needed = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):  # something built in, which tells nobody
        return
    if needed:
        raise TypeError(
            f"{called(function)} needs {', '.join(needed)}, and a task is called without arguments: "
            "give them defaults, or a functools.partial and a name="
        )


def called(function: Any) -> str:
    """What to call it in a message."""
    return str(getattr(function, "__qualname__", None) or repr(function))


def default_name(function: Any) -> str:
    """`module:function`, the same in every process that runs the program.

    Raises `ValueError` for what has no name of its own.
    """
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str) or name.endswith("<lambda>"):
        raise ValueError(f"{function!r} has no name of its own: give name=")
    return f"{_module(function.__module__)}:{name}"


def is_cancelled() -> bool:
    """Somebody wants the running asyncio task to end: a function may raise `CancelledError` by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _module(name: str) -> str:
    """What is `__main__` in one process may be imported in another, or be another program's."""
    if name != "__main__":
        return name
    main: Any = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    return Path(getattr(main, "__file__", None) or "__main__").stem


def _is(kind: Callable[[object], bool], function: object) -> bool:
    return kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004  # the very method
