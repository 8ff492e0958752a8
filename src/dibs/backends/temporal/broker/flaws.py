"""What is wrong with a command that came as JSON: of that no type is sure. Pure."""

from dataclasses import fields
from typing import Any

from dibs.backends.temporal.protocol.unicode import is_unicode
from dibs.backends.temporal.protocol.wire import COMMANDS
from dibs.model import Acquire, Command

MOST_TOKENS = 1_000_000
"""So many one grant may take, so that no call uses them all up."""


def flaw_of(command: Command) -> str | None:
    """What a book must not have in it; None for a sound command."""
    for name, allowed in _ALLOWED[type(command)]:
        value = getattr(command, name)
        if not isinstance(value, allowed) or (allowed is not bool and isinstance(value, bool)):
            return f"{name} is {type(value).__name__}"
        if isinstance(value, str) and not is_unicode(value):
            return f"{name} is not valid Unicode"
    if isinstance(command, Acquire) and command.tokens > MOST_TOKENS:
        return f"tokens is {command.tokens}, and may be {MOST_TOKENS} at most"
    return None


_ALLOWED: dict[type[Any], tuple[tuple[str, Any], ...]] = {
    kind: tuple(
        (each.name, float | int if each.type is float else each.type) for each in fields(kind)
    )
    for kind in COMMANDS
}
"""Of each kind of command its fields, and what these may be."""
