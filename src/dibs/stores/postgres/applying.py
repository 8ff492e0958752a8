"""A batch of commands in one round trip; one text for both worlds."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dibs.model import Command, Failed, Page
from dibs.stores.postgres import ledger
from dibs.stores.postgres.ledger import APPLY, SCAN, Told
from dibs.stores.postgres.session import Session
from dibs.stores.postgres.site import Site
from dibs.stores.postgres.statements import Rows, Statement, Values
from dibs.stores.postgres.trouble import Unfit
from dibs.stores.postgres.wire import Wire

PREPARED = (APPLY,)
"""What a server that is ours for long keeps ready."""


class Call(NamedTuple):
    """What is asked for a batch, and how the answer reads."""

    statement: Statement
    values: Values
    read: Callable[[Rows], Told]


async def apply[W: Wire](
    session: Session[W], commands: Sequence[Command], inbox: str, patience: float | None
) -> Told:
    """Apply them."""
    if not commands:
        return [], []
    try:
        call = call_for(session.site, commands, inbox)
        return call.read(await session.ask(call.statement, call.values, patience))
    except Unfit as error:
        if len(commands) > 1:
            raise  # whoever sent the batch tries its halves
        return [Failed("invalid", str(error))], []


def call_for(site: Site, commands: Sequence[Command], inbox: str) -> Call:
    """How to say them. May raise `Unfit`."""
    now, stamp = site.time()
    values = ledger.parameters(commands, inbox=inbox, now=now, stamp=stamp)
    return Call(APPLY, values, lambda rows: ledger.read_answer(rows, commands, inbox))


async def scan[W: Wire](
    session: Session[W], prefix: bytes, cursor: bytes | None, limit: int
) -> Page:
    """The next keys in the order of their bytes."""
    now, stamp = session.site.time()
    return ledger.read_page(
        await session.ask(SCAN, ledger.scan_parameters(prefix, cursor, limit, now, stamp))
    )
