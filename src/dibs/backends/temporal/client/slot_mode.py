"""Slots that workflows hold without a broker: their permits are workflows, which the server's index knows.

The index lags behind a little, and what it tells is for people only: nothing is granted by it.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from dibs.backends.temporal.client.connecting import Connection
from dibs.backends.temporal.protocol import ids
from dibs.backends.temporal.protocol.bounds import LOOKS_AGAIN
from dibs.model import Command, Holder, Inspect, Reply, Status

if TYPE_CHECKING:
    from temporalio.client import WorkflowExecution

KIND = b"semaphore:"
"""As what slot mode's pools are shown: a lock there is a semaphore with one slot."""

_PERMITS = "permit:"

LOOK = timedelta(seconds=2)

type Permits = dict[bytes, list[Holder]]
"""By key, in the order of the slots."""


async def permits_below(connection: Connection, prefix: bytes) -> Permits:
    """Those of all pools whose keys begin like that."""
    if connection.settings.share == "none" or not (
        prefix.startswith(KIND) or KIND.startswith(prefix)
    ):
        return {}
    found = await _permits(connection, None) or {}
    return {key: holders for key, holders in found.items() if key.startswith(prefix)}


async def _permits(connection: Connection, name: str | None) -> Permits | None:
    """Who holds slots without a broker: of one pool, or of all. None where the index can't be asked."""
    from temporalio.service import RPCError

    client = await connection.client()
    query = f"WorkflowType = '{ids.PERMIT}' AND ExecutionStatus = 'Running'"
    if name is not None and not set(name) & {"'", "\\"}:
        query += f" AND WorkflowId STARTS_WITH '{_PERMITS}{name}:'"
    found: Permits = {}
    try:
        async for run in client.list_workflows(query, page_size=1000, rpc_timeout=LOOK):
            of, holder = _holder(run)
            if holder is not None and name in (None, of):
                found.setdefault(KIND + of.encode(), []).append(holder)
    except RPCError:  # an index that doesn't know such a question, or may not be asked
        return None
    for holders in found.values():
        holders.sort(key=lambda holder: holder.slots)
    return found


def _holder(run: "WorkflowExecution") -> tuple[str, Holder | None]:
    """The pool, and who has a slot of it; nobody where its broker granted it, who tells of that itself."""
    name, _, slot = run.id.removeprefix(_PERMITS).rpartition(":")
    brokers = [ids.broker_id(f"{kind}:{name}".encode()) for kind in ("semaphore", "lock")]
    by_broker = run.parent_id in brokers
    if (
        not (run.id.startswith(_PERMITS) and name and slot.isascii() and slot.isdigit())
        or by_broker
    ):
        return name, None
    began = (run.execution_time or run.start_time).timestamp()
    return name, Holder(
        lease="",
        owner=run.id,  # as the broker calls it
        token=0,
        units=1,
        slots=(int(slot),),
        held_for=max(time.time() - began, 0.0),
        expires_in=LOOKS_AGAIN,
        note=f"held by the workflow {run.parent_id}" if run.parent_id else "held by a client",
        state="kept",
    )


async def seen(
    connection: Connection, commands: Sequence[Command], replies: Sequence[Reply]
) -> Sequence[Reply]:
    """What was told of pools, and who holds slots of them without a broker.

    Where somebody waits the broker has found that out itself, and whoever waits looks often.
    """
    found = list(replies)
    for number, (command, reply) in enumerate(zip(commands, replies, strict=True)):
        if (
            isinstance(command, Inspect)
            and isinstance(reply, Status)
            and not reply.waiting
            and _may_be_held(connection, command)
        ):
            name = command.key.partition(b":")[2].decode()
            permits = await _permits(connection, name)
            found[number] = reply if permits is None else together(reply, permits)
    return found


def _may_be_held(connection: Connection, command: Inspect) -> bool:
    """Slot mode may have it, and whoever asks has not said that it hasn't."""
    if not command.key.startswith(KIND) or not connection.settings.shares(command):
        return False
    try:
        command.key.decode()
    except UnicodeDecodeError:
        return False
    return True


def together(status: Status, permits: Permits) -> Status:
    """A broker knows who was in its way when it last looked; the index knows who is there."""
    if status.waiting:
        return status
    others = [each for each in status.holders if not _is_permit(each)]
    return replace(status, holders=(*others, *permits.get(status.key, ())))


def _is_permit(holder: Holder) -> bool:
    return not holder.lease and holder.owner.startswith(_PERMITS)
