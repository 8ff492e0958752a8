"""Acquire as part of the user's own transaction: one try, on the user's connection."""

from dibs.config import Duration, Unset, optional_seconds
from dibs.errors import BackendUnavailable
from dibs.locks.acquire import refused
from dibs.locks.lease import give_up
from dibs.locks.messages import unexpected
from dibs.locks.requests import AcquireRequest, Grant, new_id
from dibs.model import Granted, Refused
from dibs.runtime.port import Runtime, TransactionConnection


def one_try(wait: Duration | Unset | None) -> float:
    """Seconds to wait within a transaction: 0. Raises `ValueError` for any other wait."""
    if isinstance(wait, Unset) or optional_seconds(wait, "wait") == 0:
        return 0
    raise ValueError(
        f"wait= is {wait!r}, and within= is one try, because a wait would keep the transaction "
        "open: leave wait= out, and try again in another transaction"
    )


async def acquire_within(
    rt: Runtime, transaction: TransactionConnection, request: AcquireRequest
) -> Grant:
    """Try once. Raises as any try, and `BackendUnavailable` if another transaction has the key."""
    rt.keeper.prepare()
    if not rt.is_ready:
        await rt.ready()
    await transaction.open()
    lease_id, sent = new_id(), rt.now()
    try:
        (reply,) = await transaction.apply((request.command(lease_id, rt.inbox),))
    except BaseException as error:
        # after an error of the database it is undone; after a broken connection or an interrupt, nobody knows
        if isinstance(error, BackendUnavailable) or not isinstance(error, Exception):
            give_up(rt, request.key, lease_id, doubtful=True)
        raise
    if isinstance(reply, Granted):
        return Grant.of(lease_id, reply, sent, doubtful=False, in_transaction=True)
    if isinstance(reply, Refused):
        raise refused(request, reply)
    raise unexpected(reply, request.key)
