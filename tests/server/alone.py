"""One store behind what a server has for several, without a server."""

from uuid import uuid4

from leasehold.runtime.asyncio import AsyncRuntime
from leasehold.server.placing.atlas import Atlas
from leasehold.server.placing.guards import Guards
from leasehold.server.placing.listing import Listed, Listing
from leasehold.server.placing.runtime import PlacedRuntime
from leasehold.server.placing.table import Table
from leasehold.server.placing.ways import Ways
from leasehold.server.records import records_for


def alone(store: AsyncRuntime) -> PlacedRuntime:
    """The only store, now and always: the table never ages, whatever the store's clock does."""
    listing = Listing((Listed("only", ("here",)),), "only", 3.0)
    records = records_for(f"memory://{uuid4()}")  # nobody reads them
    atlas = Atlas(records, lambda: 0.0, Table(listing, read_at=0.0), 3.0)
    return PlacedRuntime(store, Ways({"here": store}, listing), atlas, Guards(b"secret"))
