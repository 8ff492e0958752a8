"""Warns of DIBS_ variables that nothing reads, most often because their names are misspelt."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields

from dibs.cli.options import KINDS
from dibs.config import READERS
from dibs.settings import STORE_KEYS, STORES, closest, is_link

_NAMED = re.compile(r"([A-Z]+)__(.+)__([A-Z_]+)", re.ASCII)
"""A setting of one resource or store: its kind, its name, and the setting."""

_FOR_ALL = (
    *(*STORE_KEYS, *READERS, "config", "require", "debug"),
    *("api_key", "api_key_file", "lock_id", "application"),
)


def _settings_of(kind: str) -> Collection[str]:
    """Settings of one resource of this kind, or one store; without a kind, settings such as DIBS_TTL."""
    match kind:
        case "tasklock" | "leader":
            import dibs

            config = dibs.TaskLockConfig if kind == "tasklock" else dibs.LeaderConfig
            return [each.name for each in fields(config)]
        case _ if kind in KINDS:
            return READERS
        case _:
            return {"": _FOR_ALL, STORES: STORE_KEYS}.get(kind, ())


def misspelt(environ: Mapping[str, str]) -> Iterator[str]:
    """A warning for each unknown variable; never its value, which can be a secret.

    `dibs serve` reads DIBS_SERVER_… itself.
    """
    for variable, value in environ.items():
        name = variable.removeprefix("DIBS_")
        if name == variable or name.startswith("SERVER_") or is_link(name, value):
            continue
        named = _NAMED.fullmatch(name)
        kind, _, field = named.groups() if named else ("", "", name)
        known = _settings_of(kind.lower())
        if field.lower() in known:
            continue
        if known:
            close = closest(field.lower(), known)
            meant = name.removesuffix(field) + close.upper()
        else:
            close = closest(kind.lower(), (STORES, *KINDS))
            meant = close.upper() + name.removeprefix(kind)
        if named or close:
            guess = f". Did you mean DIBS_{meant}?" if close else ""
            yield f"ignored the unknown setting {variable}{guess}"
