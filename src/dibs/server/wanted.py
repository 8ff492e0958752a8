"""Describe valid values in plain words, for messages about invalid parameters and settings."""

import re
from typing import Any

from msgspec import Struct, inspect

_WHERE = re.compile(r" - at `\$\.([^`]+)`$")


def place_in(error: str) -> str:
    """Where it is that msgspec complains of: fields with dots between; empty if it doesn't say."""
    found = _WHERE.search(error)
    return found[1] if found else ""


def wanted(kind: type[Struct], place: str) -> str:
    """What may stand there; empty if there are no words for it, or no such place."""
    node: Any = inspect.type_info(kind)
    words = ""
    for name in place.split("."):
        fields = node.fields if isinstance(node, inspect.StructType) else ()
        found = [field.type for field in fields if field.encode_name == name]
        if not found:
            return ""
        node, words = _plain(found[0])
    return words or _said(node)


def _plain(node: Any) -> tuple[Any, str]:
    """A type without what surrounds it, and the words that were left there for it."""
    words = ""
    while isinstance(node, inspect.Metadata | inspect.UnionType):
        if isinstance(node, inspect.UnionType):
            node = next(each for each in node.types if not isinstance(each, inspect.NoneType))
        else:
            words = (node.extra or {}).get("words", words)
            node = node.type
    return node, words


def _said(node: Any) -> str:
    match node:
        case inspect.LiteralType(values=values):
            return f"one of {', '.join(str(each) for each in values if each)}"
        case inspect.IntType():
            return f"a whole number{_bounds(node)}"
        case inspect.FloatType():
            return f"a number{_bounds(node)}"
        case inspect.BoolType():
            return "true or false"
        case _:
            return ""


def _bounds(node: inspect.IntType | inspect.FloatType) -> str:
    least = f", {node.ge} at least" if node.ge is not None else ""
    above = f", above {node.gt}" if node.gt is not None else ""
    most = f", {node.le} at most" if node.le is not None else ""
    return f"{least}{above}{most}"
