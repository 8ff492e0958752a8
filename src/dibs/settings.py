"""Settings of primitives and stores: from the environment, and from the file that `DIBS_CONFIG` names.

No file is looked for in the working directory or in a home: what a lock means must not depend on where
a program was started. The file is read once in each process, when the first setting is looked up.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from dibs.config import READERS, UNSET, LockConfig, flag
from dibs.core.names import KINDS, Kind, printable
from dibs.errors import NotConfigured, UnsafeTiming
from dibs.stores.redact import redacted

_NAME = re.compile(r"[a-z0-9_-]+", re.ASCII)


def store_name(name: object) -> str:
    """A name of a store. Raises `TypeError` or `ValueError` for what can't be one."""
    if not isinstance(name, str):
        raise TypeError(f"a store's name is {name!r}: give a text, such as 'reports'")
    if "://" in name:
        raise ValueError(
            f"{redacted(name)!r} is a URL, and no name of a store: give client=connect(url), or "
            "name it in the settings, and give client='reports'"
        )
    if name == "default":
        raise ValueError(
            "'default' is not a store name. Primitives without client= use the default store: "
            "connect(url, default=True), DIBS_URL, or url at the top of the settings file"
        )
    if not _NAME.fullmatch(name):
        raise ValueError(f"a store's name is {name!r}: write it with a to z, 0 to 9, _ and -")
    return name


VARIABLE = "DIBS_CONFIG"

STORE_TIMES = ("connect_timeout", "call_timeout")
STORE_KEYS = ("url", *STORE_TIMES)
"""What may be set for a store."""

STORES = "stores"

_files: dict[str, "SettingsFile"] = {}


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

    def has_sections(self, kind: Kind) -> bool:
        """Whether any name of that kind has settings of its own."""
        return bool(self._sections[kind])

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
    file = _files.get(path)
    if file is None:
        file = _files[path] = _load(Path(path).expanduser().absolute())
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


_LITERAL = re.compile(r"[a-z0-9_.-]+", re.ASCII)
_OF_SHELLS = str.maketrans("-.", "__")

_users: dict[str, str] = {}
"""Whose the variables that begin so are: in a variable's name `-` and `.` are `_`, so two may share them."""

type Readers = Mapping[str, Callable[[str], Any]]
"""How each setting that may be there is read from a text."""


class Source(Protocol):
    """A place where settings stand."""

    def get(self, field: str) -> Any:
        """What stands there; None for nothing."""

    def place(self, field: str) -> str:
        """Where it stands, or would."""


def told(source: Source, field: str) -> str:
    """Where it stands, and what."""
    return f"{source.place(field)} is {shown(source.get(field))}"


class Variables:
    """The variables of the environment that begin alike."""

    def __init__(self, prefix: str, environ: Mapping[str, str]) -> None:
        self._prefix = prefix
        self._environ = environ

    def get(self, field: str) -> str | None:
        """The variable's text."""
        return self._environ.get(self._prefix + field.upper())

    def place(self, field: str) -> str:
        """The variable."""
        return self._prefix + field.upper()


def configured(
    kind: Kind,
    name: str | bytes,
    given: Mapping[str, Any],
    *,
    env_prefix: str | None = None,
    env_load: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> LockConfig:
    """By keyword, then this name's variables, those for all, the file (this name, then all), defaults.

    `DIBS_LOCK__CART__TTL` is for the lock named "cart", `DIBS_LOCK__MY_CART__TTL` for one named "my-cart";
    names of anything but `[a-z0-9_.-]` have no variables of their own. `env_prefix` replaces
    `DIBS_LOCK__CART__`. `env_load=False` and `DIBS_ENV_LOAD=false` leave out all of them, and the file.
    """
    values = {field: value for field, value in given.items() if value is not UNSET}
    if env_load and _loads(environ):
        _fill(values, kind, name, env_prefix, environ)
    return LockConfig(**values)


def settings_for_all(
    kind: Kind, environ: Mapping[str, str] = os.environ
) -> Mapping[str, Any] | None:
    """What is set for every name of a kind; None where names have settings of their own, or one is wrong.

    To be kept by whoever describes many names: looking through the environment costs more than a lock.
    """
    own = f"DIBS_{kind.upper()}__"
    try:
        file = named_in(environ)
        if any(key.startswith(own) for key in environ) or (file and file.has_sections(kind)):
            return None
        values: dict[str, Any] = {}
        if _loads(environ):
            _fill(values, kind, b"", None, environ)
    except (ValueError, NotConfigured):
        return None
    return values


def _fill(
    values: dict[str, Any],
    kind: Kind,
    name: str | bytes,
    env_prefix: str | None,
    environ: Mapping[str, str],
) -> None:
    """Add what is set. What is wrong with a setting by itself is the fault of the place where it stands."""
    for source in _sources(kind, name, READERS, env_prefix, environ, for_all=True):
        for field in _filled(values, source, READERS):
            check = partial(LockConfig, **{field: values[field]})
            blaming([told(source, field)], check)


def configured_together[C](
    make: Callable[..., C],
    readers: Readers,
    kind: Kind,
    name: str | bytes,
    given: Mapping[str, Any],
    *,
    env_prefix: str | None = None,
    env_load: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> C:
    """Settings that only go together: from the same places, less those for all."""
    values = {field: value for field, value in given.items() if value is not UNSET}
    places: list[str] = []
    if env_load and _loads(environ):
        for source in _sources(kind, name, readers, env_prefix, environ, for_all=False):
            places += [told(source, field) for field in _filled(values, source, readers)]
    return blaming(places, lambda: make(**values))


def _loads(environ: Mapping[str, str]) -> bool:
    """Whether settings are read at all. Raises `ValueError` for a variable that is neither yes nor no."""
    said = environ.get("DIBS_ENV_LOAD")
    return not said or blaming([f"DIBS_ENV_LOAD is {shown(said)}"], lambda: flag(said))


def shell_name(name: str) -> str:
    """A name as part of a variable's name that shells can export."""
    return name.upper().translate(_OF_SHELLS)


def check_sole(prefix: str, name: str) -> None:
    """Raises `ValueError` if another name of this program has the variables that begin so."""
    other = _users.setdefault(prefix, name)
    if other != name:
        raise ValueError(
            f"{prefix}… is for {other!r} and for {name!r}, as - and . are _ in variables: set both in the "
            "file that DIBS_CONFIG names"
        )


def own_prefix(kind: Kind, name: str | bytes, env_prefix: str | None) -> str | None:
    """What the variables begin with that are for this name only; None if it has none of its own."""
    if env_prefix is not None:
        return env_prefix
    if isinstance(name, str) and _LITERAL.fullmatch(name):
        return f"DIBS_{kind.upper()}__{shell_name(name)}__"
    return None


def _sources(
    kind: Kind,
    name: str | bytes,
    readers: Readers,
    env_prefix: str | None,
    environ: Mapping[str, str],
    *,
    for_all: bool,
) -> list[Source]:
    own = own_prefix(kind, name, env_prefix)
    prefixes = [own, "DIBS_" if for_all else None]
    variables = "\n".join(("", *environ))  # one look costs less than to miss one for each setting
    found: list[Source] = [
        Variables(prefix, environ)
        for prefix in prefixes
        if prefix is not None and f"\n{prefix}" in variables
    ]
    if own is not None and env_prefix is None and f"\n{own}" in variables:
        assert isinstance(name, str)
        check_sole(own, name)
    file = named_in(environ)
    if file is not None:
        if (section := file.section(kind, name)) is not None:
            section.refuse_others(readers)
            found.append(section)
        if for_all:
            found.append(file.top)
    return found


def _filled(values: dict[str, Any], source: Source, readers: Readers) -> list[str]:
    """Take what stands there and is not known yet; tell which that was."""
    taken = []
    for field, read in readers.items():
        if field not in values and (found := source.get(field)) is not None:
            values[field] = _read(source, field, found, read) if isinstance(found, str) else found
            taken.append(field)
    return taken


def _read(source: Source, field: str, text: str, read: Callable[[str], Any]) -> Any:
    return blaming([told(source, field)], lambda: read(text))


def blaming[C](places: list[str], make: Callable[[], C]) -> C:
    """Make something of settings, and let an error say where those stand. Raises `ValueError`."""
    try:
        return make()
    except (ValueError, TypeError) as error:
        if not places:
            raise
        kind = UnsafeTiming if isinstance(error, UnsafeTiming) else ValueError
        raise kind(f"{'; '.join(places)}: {error}") from error
