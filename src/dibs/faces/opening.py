"""Which store a client is of."""

from typing import Any, NamedTuple, TypedDict

from dibs.clock import Clock
from dibs.config import Duration
from dibs.defaults import DefaultStore, default_hub
from dibs.faces.loops import refuse_in_workflow
from dibs.hub import Hub, hub_for, hub_of
from dibs.store_names import store_name
from dibs.stores import Claim, hub_named, source_of


class ConnectOptions(TypedDict, total=False):
    """How a store is spoken to."""

    connect_timeout: Duration
    call_timeout: Duration
    clock: Clock | None
    client: Any


class Opened(NamedTuple):
    """A store, and whose it is: a client's own, one of several clients' by its name, or not theirs."""

    hub: Hub
    claim: Claim | None = None
    shared: bool = False
    default: DefaultStore | None = None

    def taken(self) -> Hub:
        """The store, with its name if it has one: a client that was closed has to take that again."""
        hub = self.hub if self.claim is None else self.claim.take()
        if self.default is not None:
            self.default.begin(hub)
        return hub

    def given_up(self) -> bool:
        """Nobody else needs the store, so that it may be closed."""
        if self.default is not None:
            self.default.end()
        return not self.shared if self.claim is None else self.claim.leave()


def opened(url: str | None, default: bool, name: str | None, options: ConnectOptions) -> Opened:
    """The store of a URL, or one that is open already, which takes no options: a named or the default one."""
    refuse_in_workflow(name="Client")
    if name is not None:
        store_name(name)
    connects = url is not None or "client" in options
    found = _connected(url, name, options) if connects else _open_already(name, options)
    if not default or (not connects and name is None):  # the default store is that already
        return found
    standing = DefaultStore(found.hub)
    standing.begin(found.hub)
    return found._replace(default=standing)


def _open_already(name: str | None, options: ConnectOptions) -> Opened:
    if options:
        whose = "the default store" if name is None else f"the store named {name!r}"
        raise TypeError(
            f"connect() was given {', '.join(options)} and no URL: options belong to a URL, "
            f"and {whose} has its own"
        )
    return Opened(default_hub() if name is None else hub_named(name), shared=True)


def _connected(url: str | None, name: str | None, options: ConnectOptions) -> Opened:
    if "client" in options and url is not None:
        raise TypeError("connect() was given a URL and client=: give one of them")
    hub = hub_for(url, **options) if url is not None else hub_of(**options)
    if name is None:
        return Opened(hub)
    claim = Claim(name, hub, source_of(url, options))
    return Opened(claim.take(), claim)
