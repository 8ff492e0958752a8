"""One store behind what a server has for several, without a server."""

from uuid import uuid4

from dibs.runtime.aio import AsyncRuntime
from dibs.server.placing.atlas import Atlas
from dibs.server.placing.listing import Listed, Listing
from dibs.server.placing.runtime import PlacedRuntime
from dibs.server.placing.table import Table
from dibs.server.placing.ways import Ways
from dibs.server.records import records_for


def alone(store: AsyncRuntime) -> PlacedRuntime:
    """The only store, now and always: the table never ages, whatever the store's clock does."""
    listing = Listing((Listed("only", ("here",)),), "only", 3.0)
    records = records_for(f"memory://{uuid4()}")  # nobody reads them
    atlas = Atlas(records, lambda: 0.0, Table(listing, read_at=0.0), 3.0, store)
    return PlacedRuntime(store, Ways({"here": store}, listing), atlas)
