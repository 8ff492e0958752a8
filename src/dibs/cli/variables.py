"""Warn about misspelt `DIBS_*` variables."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields

from dibs.cli.options import KINDS
from dibs.config import READERS
from dibs.misspelt import is_link, near
from dibs.settings_file import STORE_KEYS, STORES

_PREFIX = "DIBS_"
_SERVERS = "DIBS_SERVER_"
"""`dibs serve` looks at those itself."""

_ONE_NAME_S = re.compile(r"([A-Z]+)__(.+)__([A-Z_]+)", re.ASCII)

_OTHERS = ("config", "require", "debug", "api_key", "api_key_file", "lock_id", "application")
_FOR_ALL = frozenset({*STORE_KEYS, *READERS, *_OTHERS})


def misspelt(environ: Mapping[str, str]) -> Iterator[str]:
    """A warning for each; never its value, which can be a secret."""
    for variable, value in environ.items():
        name = variable.removeprefix(_PREFIX)
        if name == variable or variable.startswith(_SERVERS) or name.lower() in _FOR_ALL:
            continue
        meant = _meant(name, value)
        if meant is not None:
            guess = f". Did you mean {_PREFIX}{meant}?" if meant else ""
            yield f"ignored the unknown setting {variable}{guess}"


def _meant(name: str, value: str) -> str | None:
    """What may be meant; empty for who knows what, None if it is none of our business."""
    if is_link(name, value):
        return None
    found = _ONE_NAME_S.fullmatch(name)
    if found is None:
        return near(name.lower(), _FOR_ALL).upper() or None
    kind, whose, field = found.groups()
    known = (STORES, *KINDS)
    if kind.lower() not in known:
        close = near(kind.lower(), known).upper()
        return close and f"{close}__{whose}__{field}"
    settings = _fields(kind.lower())
    if field.lower() in settings:
        return None
    close = near(field.lower(), settings).upper()
    return close and f"{kind}__{whose}__{close}"


def _fields(kind: str) -> Collection[str]:
    """What can be set for one of that kind."""
    import dibs

    if kind == STORES:
        return STORE_KEYS
    if kind == "tasklock":
        return [each.name for each in fields(dibs.TaskLockConfig)]
    if kind == "leader":
        return [each.name for each in fields(dibs.LeaderConfig)]
    return READERS
