"""What can be done to a key without holding it."""

from dataclasses import replace

from leasehold.core.timing import trusted
from leasehold.errors import LeaseLost
from leasehold.model import Failed, Granted, Inspect, Renew, Renewed, Revoke, Revoked, Status
from leasehold.primitives.acquire import Grant, unexpected
from leasehold.primitives.handle import unpack
from leasehold.primitives.lease import LeaseBase
from leasehold.primitives.telling import key_shown
from leasehold.runtime.port import Runtime


async def status(rt: Runtime, key: bytes) -> Status:
    """Who holds a key and who waits for it."""
    reply = (await rt.call(Inspect(key))).reply
    if isinstance(reply, Status):
        own = rt.keeper.held(key)
        return replace(reply, mine=tuple(h for h in reply.holders if h.lease in own))
    raise unexpected(reply, key)


async def revoke(rt: Runtime, key: bytes, reason: str, now: bool) -> int:
    """Refuse further renewals to all holders; return how many there were."""
    reply = (await rt.call(Revoke(key, None, reason, now))).reply
    if isinstance(reply, Revoked):
        return reply.count
    raise unexpected(reply, key)


async def attach[LeaseT: LeaseBase](rt: Runtime, handle: str, lease_type: type[LeaseT]) -> LeaseT:
    """Take over a detached lease, if the store still has it."""
    found = unpack(handle)
    answer = await rt.call(Renew(found.key, found.id, found.terms.ttl))
    reply = answer.reply
    if isinstance(reply, Failed):
        raise unexpected(reply, found.key)
    if not isinstance(reply, Renewed | Granted):
        raise LeaseLost(
            f"the detached lease on {key_shown(found.key)} (token {found.token}) has ended",
            key=found.key,
        )
    sent, deadline = answer.sent, answer.sent + trusted(reply.ttl)
    grant = Grant(found.id, found.token, found.slots, sent, deadline, None, found.doubtful)
    return lease_type(rt, found.key, found.terms, grant, rt.me())


def scan_prefix(kind: str, prefix: str | bytes) -> bytes:
    """The beginning of the keys of that kind whose names begin with `prefix`."""
    raw = prefix.encode() if isinstance(prefix, str) else prefix
    return kind.encode() + b":" + raw
