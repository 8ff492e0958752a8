"""The options of a store's URL: what follows the `?`."""

from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import parse_qsl

from dibs.config import flag as read_flag
from dibs.config import seconds
from dibs.settings import closest

DAY = 86400

type Read = Callable[[str], Any]
"""Reads the value of an option. Raises `ValueError` if it is wrong: "must be ..."."""


def read_options(
    query: str, known: Mapping[str, Read], ignored: Collection[str] = ()
) -> dict[str, Any]:
    """Read options. Raises `ValueError` for one that is unknown, is given twice, or cannot be read.

    The errors show no values, which may be secret, or parts of a password that was not escaped.
    """
    found: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in ignored:
            continue
        read = known.get(name)
        if read is None:
            raise ValueError(
                f"there is no option {name}={did_you_mean(name, known)}; known are {', '.join(known)}"
            )
        if name in found:
            raise ValueError(f"{name}= is given twice")
        try:
            found[name] = read(value)
        except ValueError as error:
            raise ValueError(f"{name}= {error}") from None
    return found


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Suggest the known option that is spelt most like `name`; empty if none is close."""
    close = closest(name, known)
    return f"; did you mean {close}=?" if close else ""


# ---- kinds of values ------------------------------------------------------------------------------


def text(value: str) -> str:
    """Any text but an empty one."""
    if not value.strip():
        raise ValueError("is empty")
    return value


def flag(value: str) -> bool:
    """A yes or a no."""
    try:
        return read_flag(value)
    except ValueError:
        raise ValueError("must be true or false") from None


def number(value: str) -> int:
    """A whole number, 0 or more."""
    if not (value.isascii() and value.isdigit()):
        raise ValueError("must be a number")
    return int(value)


def duration(value: str) -> float:
    """A duration in seconds, shorter than a day; it may be 0."""
    try:
        found = seconds(value)
    except ValueError:
        found = DAY
    if found >= DAY:
        raise ValueError("must be a duration such as 60s, of less than a day")
    return found


def timeout(value: str) -> float:
    """A duration in seconds, shorter than a day and more than 0."""
    found = duration(value)
    if not found:
        raise ValueError("must be more than 0 seconds")
    return found


def one_of(*choices: str) -> Read:
    """One of these words."""
    *others, last = choices

    def read(value: str) -> str:
        if value not in choices:
            raise ValueError(f"must be {', '.join(others)}{' or ' if others else ''}{last}")
        return value

    return read
