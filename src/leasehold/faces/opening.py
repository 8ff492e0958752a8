"""Which store a client is of."""

from typing import Any, TypedDict

from leasehold.clock import Clock
from leasehold.config import Duration
from leasehold.defaults import default_hub, set_default_hub
from leasehold.hub import Hub, hub_for, hub_of


class ConnectOptions(TypedDict, total=False):
    """How a store is spoken to."""

    connect_timeout: Duration
    call_timeout: Duration
    clock: Clock | None
    client: Any


def opened(url: str | None, default: bool, options: ConnectOptions) -> Hub:
    """The store of a URL, or the default one, which is open already and takes no options."""
    if "client" in options:
        return _opened_for(options.pop("client"), url, default, options)
    if url is None and options:
        raise TypeError(
            f"connect() was given {', '.join(options)} and no URL: options belong to a URL, "
            "and the default store has its own"
        )
    hub = default_hub() if url is None else hub_for(url, **options)
    if default:
        set_default_hub(hub)
    return hub


def _opened_for(client: object, url: str | None, default: bool, options: ConnectOptions) -> Hub:
    """The store that the user's own client of it is connected to."""
    if url is not None:
        raise TypeError("connect() was given a URL and client=: give one of them")
    hub = hub_of(client, **options)  # type: ignore[misc]  # `client` was taken out
    if default:
        set_default_hub(hub)
    return hub
