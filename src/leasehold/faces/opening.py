"""Which store a client is of."""

from typing import TypedDict

from leasehold.clock import Clock
from leasehold.config import Duration
from leasehold.defaults import default_hub, set_default_hub
from leasehold.hub import Hub, hub_for


class ConnectOptions(TypedDict, total=False):
    """How a store is spoken to."""

    connect_timeout: Duration
    call_timeout: Duration
    clock: Clock | None


def opened(url: str | None, default: bool, options: ConnectOptions) -> Hub:
    """The store of a URL, or the default one, which is open already and takes no options."""
    if url is None and options:
        raise TypeError(
            f"connect() was given {', '.join(options)} and no URL: options belong to a URL, "
            "and the default store has its own"
        )
    hub = default_hub() if url is None else hub_for(url, **options)
    if default:
        set_default_hub(hub)
    return hub
