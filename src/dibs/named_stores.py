"""The stores that settings name."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

from dibs.config import seconds
from dibs.errors import NotConfigured
from dibs.model import Capabilities
from dibs.process import FreshLock
from dibs.session import StoreSession, overridden, session_for
from dibs.settings import (
    STORE_KEYS,
    STORE_TIMES,
    VARIABLE,
    Source,
    Table,
    Variables,
    blaming,
    check_sole,
    named_in,
    shell_name,
    store_name,
    told,
)

_VARIABLE = re.compile(r"DIBS_STORES__(.+?)__URL", re.ASCII)


type Told = tuple[str | None, ...]
"""What the variables say that decide over one store."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """A store, as settings name it."""

    url: str = field(repr=False)
    """With its password."""
    options: dict[str, Any]
    place: str
    """Where the URL stands."""


def configured_store(
    name: str | None = None, environ: Mapping[str, str] = os.environ
) -> StoreSettings | None:
    """The store of that name, else of whoever names none; None where no setting says which that is."""
    file = named_in(environ)
    table = None if file is None else file.top if name is None else file.stores.get(name)
    prefix = prefix_of(name)
    if name is not None and f"{prefix}URL" in environ:
        check_sole(prefix, name)
    return _store(prefix, environ, table)


def variables_of(name: str | None, environ: Mapping[str, str] = os.environ) -> Told:
    """What tells one outcome of `configured_store` from another."""
    return tuple(map(environ.get, _variables_for(name)))


@cache
def _variables_for(name: str | None) -> tuple[str, ...]:
    own = (prefix_of(name) + key.upper() for key in STORE_KEYS)
    return *own, VARIABLE


def prefix_of(name: str | None) -> str:
    """What the variables of a named store, or of the default one, begin with."""
    return "DIBS_" if name is None else f"DIBS_STORES__{shell_name(name)}__"


def names_of_stores(environ: Mapping[str, str] = os.environ) -> set[str]:
    """The names that settings give to stores."""
    file = named_in(environ)
    found = {match[1].lower() for match in map(_VARIABLE.fullmatch, environ) if match}
    return found | (file.stores.keys() if file is not None else set())


def _store(prefix: str, environ: Mapping[str, str], table: Table | None) -> StoreSettings | None:
    sources: list[Source] = [Variables(prefix, environ)]
    if table is not None:
        sources.append(table)
    named = _first(sources, "url")
    if named is None:
        return None
    options = {
        key: _seconds(source, key)
        for key in STORE_TIMES
        if (source := _first(sources, key)) is not None
    }
    return StoreSettings(named.get("url"), options, named.place("url"))


def _seconds(source: Source, key: str) -> float:
    return blaming([told(source, key)], lambda: seconds(source.get(key), key))


def _first(sources: list[Source], key: str) -> Source | None:
    """The first that has it; an empty variable has nothing."""
    return next((source for source in sources if source.get(key) not in (None, "")), None)


_lock = FreshLock()


_by_settings: dict[tuple[str | None, Told], StoreSession] = {}
"""By name (None: the default store), and by the variables that said so."""


class NamedStore:
    """What a primitive has for a client where it was given a name: the store is found when it is used."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = store_name(name)

    @property
    def session(self) -> StoreSession:
        """The store that has this name now. Raises `NotConfigured` if none has."""
        return session_named(self.name)

    @property
    def url(self) -> str:
        """Its URL, without a password."""
        return self.session.url

    @property
    def capabilities(self) -> Capabilities:
        """What it promises."""
        return self.session.capabilities

    def __repr__(self) -> str:
        return f"<the store named {self.name!r}>"


def session_named(name: str) -> StoreSession:
    """An override, else the store that settings name so. Raises `NotConfigured` if there is none."""
    return overridden(name) or session_by_settings(name, lambda: _unknown(name))


def session_by_settings(name: str | None, otherwise: Callable[[], StoreSession]) -> StoreSession:
    """A store that settings name (None: the default one), opened when it is first used, and left open.

    `otherwise` is asked for the store where no setting names it.
    """
    key = name, variables_of(name)
    session = _by_settings.get(key)
    if session is not None:
        return session
    with _lock.held:
        session = _by_settings.get(key)
        if session is None:
            found = configured_store(name)
            session = _by_settings[key] = otherwise() if found is None else _opened_by(found)
    return session


def _opened_by(found: StoreSettings) -> StoreSession:
    """The store that settings name. Raises `NotConfigured`, which says where they stand."""
    try:
        return session_for(found.url, **found.options)
    except NotConfigured as error:
        raise NotConfigured(f"{found.place}: {error}") from error


def _unknown(name: str) -> NoReturn:
    known = sorted(names_of_stores())
    named = f"there are {', '.join(map(repr, known))}" if known else "no store has a name yet"
    raise NotConfigured(
        f"no store is named {name!r} here: {named}. Name one with {prefix_of(name)}URL, or with "
        f"[stores.{name}] url in the file that {VARIABLE} names"
    )
