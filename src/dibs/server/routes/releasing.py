"""Releasing one's own lease, and ending those of others."""

from dibs.core.names import fingerprint
from dibs.model import Failed, Inspect, Release, Released, Reply, Revoke, Revoked, Status
from dibs.server.answers import Answer, json
from dibs.server.call import Call
from dibs.server.problems import Problem, too_often
from dibs.server.routes.seaplane_compat import done
from dibs.server.routes.shapes import Forced, ReleaseQuery
from dibs.server.routes.telling import check_text, failure, no_such_lease, not_held


async def release(call: Call) -> Answer:
    """Give it up; or end other people's leases."""
    asked = call.query(ReleaseQuery)
    if asked.force:
        return await _force(call, asked)
    if asked.id is None:
        raise Problem(
            "malformed",
            "give the lease `id`; to end another holder's lease, give force=true and a `reason`",
        )
    if asked.reason or asked.now or asked.lease:
        raise Problem("malformed", "`lease`, `reason` and `now` need force=true")
    async with call.service.accounts.renewing.turn(call.principal.key_id):
        reply = await _given_up(call, asked.kind, asked.id)
    if isinstance(reply, Failed):
        raise failure(reply)
    if type(reply) is not Released:
        raise no_such_lease(asked.kind)
    return done(call)


async def _given_up(call: Call, kind: str, lease_id: str) -> Reply:
    service, command = call.service, Release(call.key(kind), lease_id)
    if not service.doubts.was_made(lease_id):  # another server may still send its Acquire
        command = service.doubts.buried(command)
    return (await service.ask(call.principal, command)).reply


async def _force(call: Call, asked: ReleaseQuery) -> Answer:
    """End leases that are not the caller's own. It is written down before it is done."""
    if not asked.reason.strip():
        raise Problem("malformed", "give a `reason`: the holder and the audit log get it")
    check_text("reason", asked.reason)
    lease = asked.lease if asked.id is None else fingerprint(asked.id)
    service, key = call.service, call.key(asked.kind)
    async with service.accounts.reading.turn(call.principal.key_id):
        status = (await service.runtime.call(Inspect(key))).reply
    if isinstance(status, Status) and not status.holders:
        raise not_held(asked.kind)  # and nothing is written
    if not service.audit.may_force(call.principal):
        raise too_often()
    await service.audit.write(
        call.principal,
        "force release",
        call.name,
        {"kind": asked.kind, "reason": asked.reason, "now": asked.now, "lease": lease},
    )
    command = Revoke(key, lease, asked.reason, asked.now)
    async with service.accounts.renewing.turn(call.principal.key_id):
        reply = (await service.ask(call.principal, command)).reply
    if not isinstance(reply, Revoked):
        raise failure(reply)
    if not reply.count:
        raise not_held(asked.kind)
    return json(Forced(200, "Ok", reply.count, round(reply.ends_in, 3), _warning(asked, reply)))


def _warning(asked: ReleaseQuery, reply: Revoked) -> str:
    if asked.now:
        return (
            "the lock is free now, but its former holder may still be working: "
            "only a resource that checks fencing tokens is safe"
        )
    return (
        "the holder is notified and cannot renew any more; "
        f"the lock stays held until the lease ends, in at most {reply.ends_in:.0f} s"
    )
