"""Which way a batch goes: to one server, or to the nodes of a Cluster."""

from dibs.backends.redis.cluster import Cluster
from dibs.backends.redis.link import Dial
from dibs.backends.redis.scripting import Terms
from dibs.backends.redis.server import Server
from dibs.backends.redis.settings import Settings


def router(settings: Settings, dial: Dial, terms: Terms) -> Server | Cluster:
    """What brings batches to where they belong, and back."""
    kind = Cluster if settings.topology == "cluster" else Server
    return kind(settings, dial, terms)
