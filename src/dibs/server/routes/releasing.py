"""Releasing one's own lease, and ending those of others."""

from dibs.core.names import fingerprint
from dibs.model import Failed, Release, Released, Revoke, Revoked
from dibs.server.answers import Answer, json
from dibs.server.call import Call
from dibs.server.own_ids import is_own
from dibs.server.problems import Problem
from dibs.server.routes import kinds
from dibs.server.routes.old_sdk import done
from dibs.server.routes.shapes import Forced, ReleaseQuery
from dibs.server.routes.telling import failure


async def release(call: Call) -> Answer:
    """Give it up; or end other people's leases."""
    asked = call.query(ReleaseQuery)
    if asked.force:
        return await _force(call, asked)
    if asked.id is None:
        raise Problem(
            "malformed",
            "say which lease, with id=; to end another's, say force=true and a reason= (scope force)",
        )
    if asked.reason or asked.now or asked.lease:
        raise Problem("malformed", "lease=, reason= and now= are for force=true")
    with call.service.accounts.renewing:
        if await _given_up(call, asked.kind, asked.id):
            return done(call)
    raise Problem("lost", "nothing is held under this id: it was released, or it has expired")


async def _given_up(call: Call, kind: str | None, lease_id: str) -> bool:
    """Whether there was anything to give up: of that kind, or of any."""
    service, command = call.service, Release(call.key(kind or kinds.FIRST), lease_id)
    if not is_own(lease_id):  # an Acquire of any server may be on its way
        command = service.doubts.buried(command)
    reply = (await service.ask(call.principal, command)).reply
    if isinstance(reply, Failed):
        raise failure(reply)
    if type(reply) is Released:
        return True
    return kind is None and await kinds.released(call, lease_id)


async def _force(call: Call, asked: ReleaseQuery) -> Answer:
    """End leases that are not the caller's own. It is written down before it is done."""
    if not asked.reason.strip():
        raise Problem("malformed", "say why, with reason=: the holder is told, and it is kept")
    lease = asked.lease if asked.id is None else fingerprint(asked.id)
    service = call.service
    kind = asked.kind or await kinds.only_one(call, lease)
    await service.audit.write(
        call.principal,
        "force release",
        call.name,
        {"kind": kind, "reason": asked.reason, "now": asked.now, "lease": lease},
    )
    command = Revoke(call.key(kind), lease, asked.reason, asked.now)
    with service.accounts.renewing:
        reply = (await service.ask(call.principal, command)).reply
    if not isinstance(reply, Revoked):
        raise failure(reply)
    if not reply.count:
        raise Problem("not-held", "nobody holds it")
    return json(Forced(200, "Ok", reply.count, round(reply.ends_in, 3), _warning(asked, reply)))


def _warning(asked: ReleaseQuery, reply: Revoked) -> str:
    if asked.now:
        return (
            "it is free at once, while its former holder may still be at work: "
            "from here on only a resource that checks fencing tokens is safe"
        )
    return (
        "renewals are refused from now on and the holder is told; "
        f"it stays taken for up to {reply.ends_in:.0f} s, until the lease ends"
    )
