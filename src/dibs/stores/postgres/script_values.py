"""Texts that PostgreSQL can't hold as they are, and commands that no client of ours would send.

A text there can't have the character NUL: it is written as two others, of which the first is an escape.
`dibs.fingerprint` knows of that, too.
"""

import json
from math import isfinite
from typing import Any

_ESCAPE = "\x10"


def escaped(value: Any) -> Any:
    """A text without NUL, from which `unescaped` makes the same again; anything else as it is."""
    if isinstance(value, str):
        return value.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")
    return value


def unescaped(value: Any) -> Any:
    """What was escaped, also within lists."""
    if isinstance(value, str):
        return value.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE)
    if isinstance(value, list):
        return [unescaped(item) for item in value]
    return value


def must_be_escaped(text: str) -> bool:
    """Is there, maybe, anything to escape in what this JSON says?"""
    return "\\u0000" in text or "\\u0010" in text


def loads(text: str | bytes) -> Any:
    """What a JSON text of the database says."""
    if isinstance(text, bytes):
        text = text.decode()
    value = json.loads(text)
    if "\\u0010" not in text:
        return value
    if isinstance(value, dict):
        return {name: unescaped(item) for name, item in value.items()}
    return unescaped(value)


def careful_json(said: list[dict[str, Any]]) -> str:
    """The batch as JSON, whatever is in it; what can't be said at all is said to be flawed."""
    return json.dumps([_sayable(command) for command in said])


def _sayable(command: dict[str, Any]) -> dict[str, Any]:
    values = {name: _value(value) for name, value in command.items()}
    try:
        json.dumps(values)
    except (TypeError, ValueError) as error:
        return {
            "kind": command["kind"],
            "key": command["key"],
            "flaw": f"no row can hold this: {error}",
        }
    return values


def _value(value: Any) -> Any:
    """Texts without NUL, and PostgreSQL's word for numbers that JSON has no word for."""
    value = escaped(value)
    if isinstance(value, float) and not isfinite(value):
        return str(value).replace("inf", "Infinity")
    return value
