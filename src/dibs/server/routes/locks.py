"""`/v1/locks/base64:{name}`: acquire, renew, release, look."""

from starlette.responses import Response

from dibs.core.names import fingerprint
from dibs.model import (
    Failed,
    Granted,
    Inspect,
    Lost,
    Queued,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Revoke,
    Revoked,
    Status,
)
from dibs.server.api.problems import ApiProblem, too_often
from dibs.server.api.responses import done_response, empty_response, is_seaplane_sdk, json_response
from dibs.server.api.routing import SEEING, Operation, on_path
from dibs.server.api.schemas import (
    AcquireQuery,
    Done,
    Extended,
    Forced,
    Held,
    LockShown,
    LookQuery,
    ReleaseQuery,
    RenewQuery,
    lock_shown,
    moment,
)
from dibs.server.auth.policy import Scope
from dibs.server.call import Call
from dibs.server.routes.acquiring import acquire
from dibs.server.routes.telling import (
    check_text,
    check_ttl,
    failure,
    in_line,
    no_such_lease,
    not_held,
)


async def release(call: Call) -> Response:
    """Give it up; or end other people's leases."""
    asked = call.query(ReleaseQuery)
    if asked.force:
        return await _force(call, asked)
    if asked.id is None:
        raise ApiProblem(
            "malformed",
            "give the lease `id`; to end another holder's lease, give force=true and a `reason`",
        )
    if asked.reason or asked.now or asked.lease:
        raise ApiProblem("malformed", "`lease`, `reason` and `now` need force=true")
    async with call.service.quotas.renewing.turn(call.principal.key_id):
        reply = await _given_up(call, asked.kind, asked.id)
    if isinstance(reply, Failed):
        raise failure(reply)
    if type(reply) is not Released:
        raise no_such_lease(asked.kind)
    return done_response(call.headers)


async def _given_up(call: Call, kind: str, lease_id: str) -> Reply:
    service, command = call.service, Release(call.key(kind), lease_id)
    if not service.leases.late_copies.was_made(
        lease_id
    ):  # another server may still send its Acquire
        command = service.leases.late_copies.with_tombstone(command)
    return (await service.leases.ask(call.principal, command)).reply


async def _force(call: Call, asked: ReleaseQuery) -> Response:
    """End leases that are not the caller's own. It is written down before it is done."""
    if not asked.reason.strip():
        raise ApiProblem("malformed", "give a `reason`: the holder and the audit log get it")
    check_text("reason", asked.reason)
    lease = asked.lease if asked.id is None else fingerprint(asked.id)
    service, key = call.service, call.key(asked.kind)
    async with service.quotas.reading.turn(call.principal.key_id):
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
    async with service.quotas.renewing.turn(call.principal.key_id):
        reply = (await service.leases.ask(call.principal, command)).reply
    if not isinstance(reply, Revoked):
        raise failure(reply)
    if not reply.count:
        raise not_held(asked.kind)
    return json_response(
        Forced(200, "Ok", reply.count, round(reply.ends_in, 3), _warning(asked, reply))
    )


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


async def renew(call: Call) -> Response:
    """Keep it for longer."""
    asked = call.query(RenewQuery)
    service = call.service
    check_ttl(service.limits, asked.ttl)
    command = Renew(call.key(asked.kind), asked.id, asked.ttl)
    async with service.quotas.renewing.turn(call.principal.key_id):
        answer = await service.leases.ask(call.principal, command)
    reply = answer.reply
    if type(reply) is not Renewed and type(reply) is not Granted:
        raise _not_renewed(reply, asked.kind)
    left = service.leases.remaining(reply.ttl, answer.sent)
    if is_seaplane_sdk(call.headers):
        return done_response(call.headers)
    return json_response(Extended(200, "Ok", asked.ttl, round(left, 3), moment(left)))


def _not_renewed(reply: Reply, kind: str) -> ApiProblem:
    match reply:
        case Lost(reason="revoked"):
            told = f": {reply.detail}" if reply.detail else ""
            return ApiProblem("lost", f"the lease was revoked{told}")
        case Lost():
            return no_such_lease(kind)
        case Queued():
            return in_line(reply)
        case _:
            return failure(reply)


async def look(call: Call) -> Response:
    """Who holds it."""
    asked, service = call.query(LookQuery), call.service
    status = Status(b"", 1)
    if call.allowed:
        inspect = Inspect(call.key(asked.kind))
        async with service.quotas.reading.turn(call.principal.key_id):
            reply = (await service.leases.ask(call.principal, inspect)).reply
        if not isinstance(reply, Status):
            raise failure(reply)
        status = reply
    if not status.holders:
        raise not_held(asked.kind)
    tag = _tag(status)
    if _has_it(call, tag):
        return empty_response(304, (b"etag", tag))
    return json_response(lock_shown(status), 200, (b"etag", tag))


def _tag(status: Status) -> bytes:
    """Changes with whatever is not just time passing."""
    parts = [
        f"{status.kind}.{status.last_token}.{status.capacity}.{status.waiting}.{status.holding}"
    ]
    parts += [f"{h.lease}.{h.token}.{h.units}.{h.state}" for h in status.holders]
    return b'W/"%b"' % fingerprint(";".join(parts)).encode()


def _has_it(call: Call, tag: bytes) -> bool:
    """Whether the caller knows what it would be told."""
    raw = call.headers.get(b"if-none-match")
    return raw is not None and any(each.strip() in (tag, b"*") for each in raw.split(b","))


_PATH = "/v1/locks/{name}"

ROUTES = (
    Operation(
        method="POST",
        path=_PATH,
        needs=on_path(Scope.ACQUIRE),
        handler=acquire,
        summary="Acquire a lock, or some units of a semaphore, or one side of a readers-writer lock",
        query=AcquireQuery,
        answers={200: Held},
        problems=(409, 410, 429),
    ),
    Operation(
        method="PATCH",
        path=_PATH,
        needs=on_path(Scope.ACQUIRE),
        handler=renew,
        summary="Renew a lease",
        query=RenewQuery,
        answers={200: Extended},
        problems=(409, 410),
    ),
    Operation(
        method="DELETE",
        path=_PATH,
        needs=on_path(Scope.ACQUIRE, forced=Scope.FORCE),
        handler=release,
        summary="Release a lease; with force=true, end those of others",
        query=ReleaseQuery,
        answers={200: (Done, Forced)},
        problems=(404, 410),
    ),
    Operation(
        method="GET",
        path=_PATH,
        needs=SEEING,
        handler=look,
        summary="Who holds it",
        query=LookQuery,
        answers={200: LockShown, 304: None},
        problems=(404,),
    ),
)
