"""The settings file: TOML, named by $DIBS_CONFIG, and by nothing else.

No file is looked for in the working directory or in a home: what a lock means must not depend on where
a program was started. It is read once in each process, when the first setting is looked up.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dibs.backends.redact import redacted
from dibs.config import READERS
from dibs.core.names import KINDS, Kind, printable
from dibs.errors import NotConfigured
from dibs.store_names import store_name

VARIABLE = "DIBS_CONFIG"

STORE_TIMES = ("connect_timeout", "call_timeout")
STORE_KEYS = ("url", *STORE_TIMES)
"""What may be set for a store."""

STORES = "stores"

_read: dict[str, "SettingsFile"] = {}


class Table:
    """A table of the file, and where it stands."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = values

    def get(self, field: str) -> Any:
        """What the file has for it; None for nothing."""
        return self.values.get(field)

    def place(self, field: str) -> str:
        """The file, the section and the key."""
        return f"{self.where} {field}"

    def refuse_others(self, known: Collection[str]) -> None:
        """Raises `ValueError` for a key that is not known here."""
        for key in self.values:
            if key not in known:
                # without its value, which may be a misspelt URL with a password
                raise ValueError(
                    f"{self.where} unknown setting {key}{_meant(key, known)} "
                    f"(allowed settings: {', '.join(known)})"
                )

    def tables(self, key: str, example: str) -> dict[str, "Table"]:
        """The tables in one of its tables, by name. Raises `ValueError` for what is none."""
        found = self.values.get(key, {})
        if not isinstance(found, dict):
            raise ValueError(
                f"{self.place(key)} is {shown(found)}: write a table for each name, {example}"
            )
        for name, values in found.items():
            if not isinstance(values, dict):
                raise ValueError(
                    f"{self.where} [{key}] {name} is {shown(values)}: write a table for each name, "
                    f"{example}; what is for all stands at the top of the file"
                )
        return {
            name: Table(f"{self.where} [{key}.{_key(name)}]", values)
            for name, values in found.items()
        }

    def check_url(self) -> None:
        """Raises `ValueError` for a URL that is no text."""
        url = self.get("url")
        if url is not None and not isinstance(url, str):
            raise ValueError(
                f"{self.place('url')} is {shown(url)}: give a store's URL, such as "
                '"redis://localhost/0"'
            )


class SettingsFile:
    """What the file says, by section. Raises `ValueError` for a section or a key that has no meaning."""

    def __init__(self, path: str, values: Mapping[str, Any]) -> None:
        self.top = Table(f"{path}:", values)
        self.top.refuse_others((*STORE_KEYS, STORES, *KINDS, *READERS))
        self._sections = {
            kind: self.top.tables(kind, f'such as [{kind}.cart] or [{kind}."order:{{id}}"]')
            for kind in KINDS
        }
        self.stores = self.top.tables(STORES, f"such as [{STORES}.reports]")
        for name, store in self.stores.items():
            _check_name(name, store.where)
            store.refuse_others(STORE_KEYS)
        for table in (self.top, *self.stores.values()):
            table.check_url()

    def section(self, kind: Kind, name: str | bytes) -> Table | None:
        """What is set for one name; None for nothing."""
        if isinstance(name, bytes):
            name = name.decode("utf-8", "surrogateescape")
        return self._sections[kind].get(name)


def named_in(environ: Mapping[str, str] = os.environ) -> SettingsFile | None:
    """The file that the environment names. Raises `NotConfigured` if it can't be read."""
    path = environ.get(VARIABLE)
    if not path:
        return None
    file = _read.get(path)
    if file is None:
        file = _read[path] = _load(Path(path).expanduser().absolute())
    return file


def _load(path: Path) -> SettingsFile:
    import tomllib  # only who has a file pays for it

    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise NotConfigured(
            f"{VARIABLE} names {path}, which can't be read: {error.strerror}"
        ) from error
    except ValueError as error:  # no UTF-8, or no TOML
        raise NotConfigured(f"{VARIABLE} names {path}, which is no TOML: {error}") from error
    return SettingsFile(str(path), values)


def _check_name(name: str, where: str) -> None:
    try:
        store_name(name)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _meant(key: str, known: Collection[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key, known, 1)
    return f". Did you mean {near[0]}?" if near else ""


def _key(name: str) -> str:
    """A name as TOML writes it."""
    return (
        name if name.replace("-", "_").isidentifier() and name.isascii() else f'"{printable(name)}"'
    )


def shown(value: object) -> str:
    """A setting's value, for people: without a password, if it is a URL."""
    return str(value).lower() if isinstance(value, bool) else redacted(repr(value))
