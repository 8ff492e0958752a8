"""A batch of commands in one round trip; one text for both worlds."""

from collections.abc import Sequence

from leasehold.backends.postgres import script
from leasehold.backends.postgres.session import Session
from leasehold.backends.postgres.statements import Statement
from leasehold.backends.postgres.trouble import Unfit
from leasehold.backends.postgres.wire import Wire
from leasehold.model import Command, Failed, Page, Reply, Wakeup

APPLY = Statement("leasehold_apply", script.statement())
SCAN = Statement("leasehold_scan", script.scan_statement())


async def apply[W: Wire](
    session: Session[W], commands: Sequence[Command], inbox: str, patience: float | None
) -> tuple[list[Reply], list[Wakeup]]:
    """A reply for each, and what is to be told to `inbox` itself."""
    if not commands:
        return [], []
    now, stamp = session.site.time()
    try:
        values = script.parameters(commands, inbox=inbox, now=now, stamp=stamp)
        rows = await session.ask(APPLY, values, patience)
    except Unfit as error:
        if len(commands) > 1:
            raise  # whoever sent the batch tries its halves
        return [Failed("invalid", str(error))], []
    return script.read_answer(rows, commands)


async def scan[W: Wire](
    session: Session[W], prefix: bytes, cursor: bytes | None, limit: int
) -> Page:
    """The next keys in the order of their bytes."""
    now, stamp = session.site.time()
    return script.read_page(
        await session.ask(SCAN, script.scan_parameters(prefix, cursor, limit, now, stamp))
    )
