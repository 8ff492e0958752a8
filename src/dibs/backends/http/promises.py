"""What the service's stores promise, which only the service knows."""

from dibs.backends.http.wire_service import About
from dibs.model import Capabilities

UNASKED = Capabilities(
    scope="cluster", clock=False, fenced=False, push=False, asked=False, circles=False
)
"""Until the service has been asked: as little as can be."""


class Promises:
    """What a service was last heard to promise; shared by all connections of a store."""

    def __init__(self) -> None:
        self.known = UNASKED

    def learn(self, about: About) -> None:
        """The service has said what its stores promise.

        Whoever reaches the service shares its stores, so that even a single host's is a cluster's.
        """
        promises = about.promises
        self.known = Capabilities(
            scope="cluster",
            clock=promises.clock,
            durable=promises.durable,
            fenced=promises.fenced,
            push=promises.push,
            survives=frozenset(promises.survives),
            circles=False,
        )
