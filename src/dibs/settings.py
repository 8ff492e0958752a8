"""Settings of primitives and stores: from the environment, and from the file that `DIBS_CONFIG` names.

Dibs looks for no file in the working directory or in a home: what a lock means must not depend on where
a program was started. Each process reads the file once, when it looks up the first setting.
"""

import os
import re
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

from dibs.config import READERS, UNSET, Readers, flag, seconds
from dibs.core.names import KINDS, Kind, printable
from dibs.errors import NotConfigured, UnsafeTiming
from dibs.stores.redact import redacted

VARIABLE = "DIBS_CONFIG"

STORES = "stores"
STORE_TIMES = ("connect_timeout", "call_timeout")
STORE_KEYS = ("url", *STORE_TIMES)
"""Settings of a store."""


# -- places where settings stand ----------------------------------------------------------------------


class Variables:
    """Environment variables with one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def get(self, key: str) -> str | None:
        """The variable's text; None if it is not set."""
        return os.environ.get(self.place(key))

    def place(self, key: str) -> str:
        """The variable's name."""
        return self._prefix + key.upper()


class Table:
    """A table of the settings file."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where: str = where
        self.values: Mapping[str, Any] = values

    def get(self, key: str) -> Any:
        """The value; None if it is not set."""
        return self.values.get(key)

    def place(self, key: str) -> str:
        """File, section and key."""
        return f"{self.where} {key}"

    def refuse_others(self, known: Collection[str]) -> None:
        """Raise `ValueError` for an unknown key."""
        for key in self.values:
            if key not in known:
                # without its value, which can be a misspelt URL with a password
                close = closest(key, known)
                meant = f". Did you mean {close}?" if close else ""
                raise ValueError(
                    f"{self.where} unknown setting {key}{meant} "
                    f"(allowed settings: {', '.join(known)})"
                )

    def tables(self, key: str, example: str) -> dict[str, "Table"]:
        """The tables below `key`, by name. Raises `ValueError` for anything that is not a table."""
        found = self.values.get(key, {})
        if not isinstance(found, dict):
            raise ValueError(
                f"{self.place(key)} is {shown(found)}: write a table for each name, {example}"
            )
        tables = {}
        for name, values in found.items():
            if not isinstance(values, dict):
                raise ValueError(
                    f"{self.where} [{key}] {name} is {shown(values)}: write a table for each name, "
                    f"{example}; what is for all stands at the top of the file"
                )
            plain = name.replace("-", "_").isidentifier() and name.isascii()
            section = f"{key}.{name}" if plain else f'{key}."{printable(name)}"'
            tables[name] = Table(f"{self.where} [{section}]", values)
        return tables


type Source = Variables | Table


class SettingsFile:
    """The settings file, by section. Raises `ValueError` for an unknown section or key."""

    def __init__(self, path: str, values: Mapping[str, Any]) -> None:
        self.top: Table = Table(f"{path}:", values)
        self.top.refuse_others((*STORE_KEYS, STORES, *KINDS, *READERS))
        self.sections: dict[str, dict[str, Table]] = {
            kind: self.top.tables(kind, f'such as [{kind}.cart] or [{kind}."order:{{id}}"]')
            for kind in KINDS
        }
        self.stores: dict[str, Table] = self.top.tables(STORES, f"such as [{STORES}.reports]")
        for name, store in self.stores.items():
            try:
                store_name(name)
            except ValueError as error:
                raise ValueError(f"{store.where}: {error}") from error
            store.refuse_others(STORE_KEYS)
        for table in (self.top, *self.stores.values()):
            url = table.get("url")
            if url is not None and not isinstance(url, str):
                raise ValueError(
                    f'{_said(table, "url")}: give a store\'s URL, such as "redis://localhost/0"'
                )


_files: dict[str, SettingsFile] = {}


def settings_file() -> SettingsFile | None:
    """The file that the environment names. Raises `NotConfigured` if it cannot be read."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    if named in _files:
        return _files[named]
    import tomllib  # slow to import, and most programs have no file

    path = Path(named).expanduser().absolute()
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise NotConfigured(
            f"{VARIABLE} names {path}, which can't be read: {error.strerror}"
        ) from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise NotConfigured(f"{VARIABLE} names {path}, which is no TOML: {error}") from error
    file = _files[named] = SettingsFile(str(path), values)
    return file


# -- messages -----------------------------------------------------------------------------------------


def closest(key: str, known: Collection[str]) -> str:
    """The known setting that is spelt most like `key`; empty if none is close."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(key, known, 1)), "")


_LINK = re.compile(
    r"(?:\w+_)?(?:SERVICE_(?:HOST|PORT(?:_\w+)?)|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)", re.ASCII
)
_LINK_URL = re.compile(r"(?:tcp|udp|sctp)://.+")


def is_link(name: str, value: str) -> bool:
    """Whether Kubernetes made a variable for a Service whose name begins as ours do; without the prefix."""
    return bool(_LINK.fullmatch(name) or (name.endswith("PORT") and _LINK_URL.fullmatch(value)))


def shown(value: object) -> str:
    """A setting's value, for people: without a password, if it is a URL."""
    return str(value).lower() if isinstance(value, bool) else redacted(repr(value))


def _said(source: Source, key: str) -> str:
    return f"{source.place(key)} is {shown(source.get(key))}"


@contextmanager
def blaming(*places: str) -> Generator[None]:
    """Prefix an error with the settings that it is about. Raises `ValueError` or `UnsafeTiming`."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if not places:
            raise
        kind = UnsafeTiming if isinstance(error, UnsafeTiming) else InvalidSetting
        told = str(error)
        for value in (place.partition(" is ")[2] for place in places):
            told = re.sub(rf"^\w+ is {re.escape(value)}: ", "", told)  # the place says that already
        raise kind(f"{'; '.join(places)}: {told}") from error


class InvalidSetting(ValueError):
    """A setting of the environment or the file, and not an argument, is wrong."""


# -- settings of primitives ---------------------------------------------------------------------------


_LITERAL = re.compile(r"[a-z0-9_.-]+", re.ASCII)
_OF_SHELLS = str.maketrans("-.", "__")

_users: dict[str, str] = {}
"""The name that each prefix of variables belongs to: `my-cart` and `my.cart` would share one."""


class PrimitiveConfig(Protocol):
    """The options of one kind of primitive, checked: `LockConfig`, `TaskLockConfig` or `LeaderConfig`."""

    _readers: ClassVar[Readers]
    """How each option is read from a text, in the order of the fields."""
    _for_all: ClassVar[bool]
    """Settings without a name, such as `DIBS_TTL`, apply. Otherwise the options depend on each other."""

    def __init__(self, **options: Any) -> None: ...


def config_of[C: PrimitiveConfig](
    make: type[C],
    kind: Kind,
    name: str | bytes,
    given: tuple[Any, ...],
    client: Any,
    env_prefix: str | None,
    env_load: bool,
) -> C:
    """The config of a primitive with these options, in the order of the fields; `UNSET` for unset ones.

    A client remembers configs: to look through the environment costs more than a lock.
    """
    if env_load and env_prefix is None:
        memory: dict[str, ConfigCache[C]] | None = getattr(client, "_settings", None)
        if memory is not None:
            known = memory.get(kind)
            if known is None:
                known = memory[kind] = ConfigCache(make, kind)
            if known.settings is not None:
                return known.config(given)
    options = dict(zip(make._readers, given, strict=True))
    return configured(make, kind, name, options, env_prefix=env_prefix, env_load=env_load)


def configured[C: PrimitiveConfig](
    make: type[C],
    kind: Kind,
    name: str | bytes,
    given: Mapping[str, Any],
    *,
    env_prefix: str | None = None,
    env_load: bool = True,
) -> C:
    """Look up the options of a primitive, and return its config.

    Keywords come first, then this name's variables, those for all, the file (this name, then all), defaults.
    `DIBS_LOCK__CART__TTL` is for the lock named "cart", `DIBS_LOCK__MY_CART__TTL` for one named "my-cart";
    names of anything but `[a-z0-9_.-]` have no variables of their own. `env_prefix` replaces
    `DIBS_LOCK__CART__`. `env_load=False` and `DIBS_ENV_LOAD=false` ignore all of them, and the file.
    Settings for all (`DIBS_TTL`) do not apply to task locks and leaders: their durations depend on each
    other.
    """
    values, places = _found(make, kind, name, given, env_prefix, env_load)
    with blaming(*(() if make._for_all else places)):
        return make(**values)


MOST_CONFIGS = 256
"""Configs that a client remembers of one kind."""


class ConfigCache[C: PrimitiveConfig]:
    """The configs of one kind that a client has made, by their options. Settings are read once."""

    def __init__(self, make: type[C], kind: Kind) -> None:
        self.settings: Mapping[str, Any] | None = settings_for_all(make, kind)
        """Settings that every name has; None if some names have settings of their own."""
        self._make = make
        self._unset = (UNSET,) * len(make._readers)
        self._default = make(**(self.settings or {}))
        self._cached = lru_cache(MOST_CONFIGS, typed=True)(self._read)  # 1, 1.0 and True are equal

    def config(self, given: tuple[Any, ...]) -> C:
        """The config with these options. Raises for wrong ones."""
        if given == self._unset:
            return self._default
        try:
            return self._cached(*given)
        except TypeError:  # perhaps not hashable, so it is wrong, and the config says so
            return self._read(*given)

    def _read(self, *given: Any) -> C:
        options = zip(self._make._readers, given, strict=True)
        more = {field: value for field, value in options if value is not UNSET}
        return self._make(**{**(self.settings or {}), **more})


def settings_for_all(make: type[PrimitiveConfig], kind: Kind) -> Mapping[str, Any] | None:
    """The settings that every name of a kind has.

    None if some names have settings of their own, or a setting is wrong: then each name is looked up.
    """
    own = f"DIBS_{kind.upper()}__"
    try:
        file = settings_file()
        if any(key.startswith(own) for key in os.environ) or (file and file.sections[kind]):
            return None
        return _found(make, kind, b"", {}, None, load=True)[0]
    except (ValueError, NotConfigured):
        return None


def _found(
    make: type[PrimitiveConfig],
    kind: Kind,
    name: str | bytes,
    given: Mapping[str, Any],
    env_prefix: str | None,
    load: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Every setting that is given or set, and the places of those that are set."""
    values = {key: value for key, value in given.items() if value is not UNSET}
    places: list[str] = []
    if not (load and _is_loading()):
        return values, places
    for source in _sources(make, kind, name, env_prefix):
        for key, read in make._readers.items():
            if key in values or (found := source.get(key)) is None:
                continue
            place = _said(source, key)
            with blaming(place):
                values[key] = read(found) if isinstance(found, str) else found
                if make._for_all:
                    make(**{key: values[key]})  # a wrong value is the fault of its place
            places.append(place)
    return values, places


def _is_loading() -> bool:
    """Whether primitives have settings. Raises `ValueError` for a variable that is neither yes nor no."""
    said = os.environ.get("DIBS_ENV_LOAD")
    if not said:
        return True
    with blaming(f"DIBS_ENV_LOAD is {shown(said)}"):
        return flag(said)


def _sources(
    make: type[PrimitiveConfig], kind: Kind, name: str | bytes, env_prefix: str | None
) -> Iterator[Source]:
    """The places where settings for this name stand, the most specific first."""
    prefix = env_prefix
    variables = "\n".join(("", *os.environ))  # faster than to miss each variable
    if prefix is None and isinstance(name, str) and _LITERAL.fullmatch(name):
        prefix = f"DIBS_{kind.upper()}__{_in_shells(name)}__"
        if f"\n{prefix}" in variables:
            _check_sole(prefix, name)
    for each in (prefix, "DIBS_" if make._for_all else None):
        if each is not None and f"\n{each}" in variables:
            yield Variables(each)
    file = settings_file()
    if file is not None:
        text = name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name
        section = file.sections[kind].get(text)
        if section is not None:
            section.refuse_others(make._readers)
            yield section
        if make._for_all:
            yield file.top


def _in_shells(name: str) -> str:
    """A name as part of a variable that shells can export."""
    return name.upper().translate(_OF_SHELLS)


def _check_sole(prefix: str, name: str) -> None:
    """Raise `ValueError` if another name of this program has the variables with this prefix."""
    other = _users.setdefault(prefix, name)
    if other != name:
        raise ValueError(
            f"{prefix}… is for {other!r} and for {name!r}, as - and . are _ in variables: set both in the "
            "file that DIBS_CONFIG names"
        )


# -- settings of stores -------------------------------------------------------------------------------


_NAME = re.compile(r"[a-z0-9_-]+", re.ASCII)
_STORE_URL = re.compile(r"DIBS_STORES__(.+?)__URL", re.ASCII)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """A store that the settings name."""

    url: str = field(repr=False)
    """With its password."""
    options: dict[str, Any]
    place: str
    """Where the URL stands."""


def store_name(name: object) -> str:
    """Return a store's name. Raises `TypeError` or `ValueError` for anything else."""
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


def store_prefix(name: str | None) -> str:
    """The prefix of the variables of a named store, or (None) of the default store."""
    return "DIBS_" if name is None else f"DIBS_STORES__{_in_shells(name)}__"


def store_names() -> set[str]:
    """The names that the settings give to stores."""
    file = settings_file()
    found = {match[1].lower() for match in map(_STORE_URL.fullmatch, os.environ) if match}
    return found | (file.stores.keys() if file is not None else set())


def configured_store(name: str | None = None) -> StoreSettings | None:
    """The settings of that store (None: the default store); None where no setting names it."""
    file, prefix = settings_file(), store_prefix(name)
    sources: list[Source] = [Variables(prefix)]
    if name is not None and f"{prefix}URL" in os.environ:
        _check_sole(prefix, name)
    table = None if file is None else file.top if name is None else file.stores.get(name)
    if table is not None:
        sources.append(table)
    found: dict[str, Source] = {}
    for key in STORE_KEYS:
        for source in sources:
            if source.get(key) not in (None, ""):
                found[key] = source
                break
    if "url" not in found:
        return None
    options = {}
    for key in STORE_TIMES:
        if key in found:
            with blaming(_said(found[key], key)):
                value: Any = found[key].get(key)
                options[key] = seconds(value, key)
    return StoreSettings(str(found["url"].get("url")), options, found["url"].place("url"))


def store_variables(name: str | None) -> tuple[str | None, ...]:
    """The texts of the variables that decide `configured_store(name)`."""
    return tuple(map(os.environ.get, _store_variables(name)))


@cache
def _store_variables(name: str | None) -> tuple[str, ...]:
    return *(store_prefix(name) + key.upper() for key in STORE_KEYS), VARIABLE
