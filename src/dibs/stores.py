"""Stores by name: those that are connected under one in this process, and those that settings name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from dibs.config import seconds
from dibs.errors import NotConfigured
from dibs.fork import FreshLock
from dibs.hub import Hub, hub_for
from dibs.model import Capabilities
from dibs.overrides import overridden
from dibs.settings_file import STORE_TIMES, VARIABLE
from dibs.settings_stores import (
    StoreSettings,
    Told,
    configured_store,
    names_of_stores,
    prefix_of,
    variables_of,
)
from dibs.store_names import store_name

_lock = FreshLock()


@dataclass(slots=True)
class _Entry:
    """A name in use: for which store, and by how many clients."""

    hub: Hub
    source: object
    users: int = 0
    kept: bool = False
    """It is the settings' own, and stays open."""


_connected: dict[str, _Entry] = {}
_by_settings: dict[tuple[str | None, Told], _Entry] = {}
"""By name (None: the default store), and by the variables that said so."""


class NamedStore:
    """What a primitive has for a client where it was given a name: the store is found when it is used."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = store_name(name)

    @property
    def hub(self) -> Hub:
        """The store that has this name now. Raises `NotConfigured` if none has."""
        return hub_named(self.name)

    @property
    def url(self) -> str:
        """Its URL, without a password."""
        return self.hub.url

    @property
    def capabilities(self) -> Capabilities:
        """What it promises."""
        return self.hub.capabilities

    def __repr__(self) -> str:
        return f"<the store named {self.name!r}>"


class Claim:
    """A client's part in a name, which stands until the last client of it is closed."""

    def __init__(self, name: str, hub: Hub, source: object) -> None:
        self._name = store_name(name)
        self._hub = hub
        self._source = source
        self._held = False
        self._may_close = True

    def take(self) -> Hub:
        """The store that the name stands for: the one that is in use under it already, or ours.

        Raises `ValueError` if that is another than ours.
        """
        with _lock.held:
            entry = _connected.get(self._name) or self._begun()
            if entry.source != self._source:
                raise self._conflict(entry.hub)
            if not self._held:
                entry.users += 1
                self._held = True
            _connected[self._name] = entry
        self._hub, self._may_close = entry.hub, not entry.kept
        return entry.hub

    def leave(self) -> bool:
        """Give up our part; tell whether nobody else needs the store, so that it may be closed."""
        with _lock.held:
            entry = _connected.get(self._name)
            if entry is None or entry.hub is not self._hub:
                return self._may_close
            if self._held:
                self._held = False
                entry.users -= 1
            if not entry.users:
                del _connected[self._name]
            return not entry.users and self._may_close

    def _begun(self) -> _Entry:
        settled = _by_settings.get((self._name, variables_of(self._name)))
        if settled is None:
            return _Entry(self._hub, self._source)
        return _Entry(settled.hub, settled.source, kept=True)

    def _conflict(self, other: Hub) -> ValueError:
        options = ", with other options" if other.url == self._hub.url else ""
        return ValueError(
            f"the name {self._name!r} is in use here for {other.url}{options}: close that client "
            f"first, or give {self._hub.url} another name"
        )


def hub_named(name: str) -> Hub:
    """An override, else what is connected under that name, else what settings name so.

    Raises `NotConfigured` for a name that no store has.
    """
    hub = overridden(name)
    if hub is not None:
        return hub
    entry = _connected.get(name)
    return entry.hub if entry is not None else hub_by_settings(name, lambda: _unknown(name))


def hub_by_settings(name: str | None, otherwise: Callable[[], Hub]) -> Hub:
    """A store that settings name (None: the default one), opened when it is first used, and left open.

    `otherwise` is asked for the store where no setting names it.
    """
    key = name, variables_of(name)
    entry = _by_settings.get(key)
    if entry is not None:
        return entry.hub
    with _lock.held:
        entry = _by_settings.get(key)
        if entry is None:
            found = configured_store(name)
            hub, source = (otherwise(), None) if found is None else _opened_by(found)
            entry = _by_settings[key] = _Entry(hub, source, kept=True)
    return entry.hub


def source_of(url: str | None, options: Mapping[str, Any]) -> object:
    """What tells one store, as it is spoken to, from another."""
    told = {
        key: seconds(value, key) if key in STORE_TIMES else value for key, value in options.items()
    }
    return url, tuple(sorted(told.items()))


def _opened_by(found: StoreSettings) -> tuple[Hub, object]:
    """The store that settings name. Raises `NotConfigured`, which says where they stand."""
    try:
        return hub_for(found.url, **found.options), source_of(found.url, found.options)
    except NotConfigured as error:
        raise NotConfigured(f"{found.place}: {error}") from error


def _unknown(name: str) -> NoReturn:
    known = sorted({*_connected, *names_of_stores()})
    named = f"there are {', '.join(map(repr, known))}" if known else "no store has a name yet"
    raise NotConfigured(
        f"no store is named {name!r} here: {named}. Name one with connect(url, name={name!r}), "
        f"{prefix_of(name)}URL, or [stores.{name}] url in the file that {VARIABLE} names"
    )
