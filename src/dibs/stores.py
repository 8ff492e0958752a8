"""The stores that settings name."""

from collections.abc import Callable
from typing import NoReturn

from dibs.errors import NotConfigured
from dibs.fork import FreshLock
from dibs.hub import Hub, hub_for
from dibs.model import Capabilities
from dibs.overrides import overridden
from dibs.settings_file import VARIABLE
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


_by_settings: dict[tuple[str | None, Told], Hub] = {}
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


def hub_named(name: str) -> Hub:
    """An override, else the store that settings name so. Raises `NotConfigured` if there is none."""
    return overridden(name) or hub_by_settings(name, lambda: _unknown(name))


def hub_by_settings(name: str | None, otherwise: Callable[[], Hub]) -> Hub:
    """A store that settings name (None: the default one), opened when it is first used, and left open.

    `otherwise` is asked for the store where no setting names it.
    """
    key = name, variables_of(name)
    hub = _by_settings.get(key)
    if hub is not None:
        return hub
    with _lock.held:
        hub = _by_settings.get(key)
        if hub is None:
            found = configured_store(name)
            hub = _by_settings[key] = otherwise() if found is None else _opened_by(found)
    return hub


def _opened_by(found: StoreSettings) -> Hub:
    """The store that settings name. Raises `NotConfigured`, which says where they stand."""
    try:
        return hub_for(found.url, **found.options)
    except NotConfigured as error:
        raise NotConfigured(f"{found.place}: {error}") from error


def _unknown(name: str) -> NoReturn:
    known = sorted(names_of_stores())
    named = f"there are {', '.join(map(repr, known))}" if known else "no store has a name yet"
    raise NotConfigured(
        f"no store is named {name!r} here: {named}. Name one with {prefix_of(name)}URL, or with "
        f"[stores.{name}] url in the file that {VARIABLE} names"
    )
