"""Commands that no client of ours would send, in such a form that they cost only themselves."""

import json
from math import isfinite
from typing import Any

_MUST_BE_WHOLE = ("units", "priority")
"""As in `core.ledger`, where 1.0 and True are no numbers of units."""


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
    """A number that JSON has no word for goes as PostgreSQL's word for it."""
    if isinstance(value, float) and not isfinite(value):
        return str(value).replace("inf", "Infinity")
    return value
