"""The conformance suite, and the primitives over each of our stores.

A primitive touches no store, so a store of somebody else needs no case of them.
"""

from dibs.testing.conformance import BackendConformance
from tests.conformance.electing import LeaderClients, TaskClients
from tests.conformance.nesting import CircleClients, NestingClients
from tests.conformance.readers import ReaderClients
from tests.conformance.together import TogetherClients


class WholeSuite(
    BackendConformance,
    ReaderClients,
    NestingClients,
    TaskClients,
    LeaderClients,
    CircleClients,
    TogetherClients,
):
    """Every case."""
