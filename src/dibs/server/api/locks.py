"""`/v1/locks/base64:{name}`: acquire, renew, release and inspect one lock, semaphore or other primitive."""

from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from dibs.core.names import KINDS, fingerprint
from dibs.errors import BackendUnavailable
from dibs.model import (
    MANY,
    Acquire,
    Command,
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
from dibs.server.api.bounds import CommandBounds
from dibs.server.api.problems import ApiProblem, too_often
from dibs.server.api.responses import (
    done_response,
    is_seaplane_rust_sdk,
    is_seaplane_sdk,
    json_response,
)
from dibs.server.api.routing import SEEING, Caller, on_path, route
from dibs.server.api.schemas import (
    AcquireQuery,
    Done,
    Extended,
    Forced,
    HeldAnswer,
    LeaseIdBody,
    LockShown,
    LookQuery,
    NewLeaseIdBody,
    ReleaseQuery,
    RenewQuery,
    lock_shown,
    moment,
)
from dibs.server.api.waiting import (
    AcquiredLease,
    WaitingAcquires,
    failure,
    not_acquired,
    still_waiting,
)
from dibs.server.audit import Audit
from dibs.server.auth.policy import Scope
from dibs.server.leases import LeaseService
from dibs.server.quotas import Quotas

PATH = "/v1/locks/{name}"

_OTHER_KINDS = f"For another kind, add kind= ({', '.join(KINDS)})"


@dataclass(eq=False)
class LockRoutes:
    """Commands about one key."""

    _leases: LeaseService
    _quotas: Quotas
    _waiting: WaitingAcquires
    _audit: Audit
    _bounds: CommandBounds
    _max_wait: float

    # -- acquire ------------------------------------------------------------------------------------

    @route(
        "POST",
        PATH,
        on_path(Scope.ACQUIRE),
        query=AcquireQuery,
        body=NewLeaseIdBody,
        id_in_body=True,
        answers={200: HeldAnswer},
        problems=(409, 410, 429),
    )
    async def acquire(self, caller: Caller, name: bytes, query: AcquireQuery) -> Response:
        """Acquire a lock, or some units of a semaphore, or one side of a readers-writer lock.

        Acquires at once, or within `wait` seconds.
        """
        keep_id = query.id is not None
        if not keep_id and is_seaplane_rust_sdk(caller.headers):
            raise ApiProblem(  # it could not read the grant, and so not release it
                "malformed",
                "nothing was acquired: Seaplane's Rust SDK reads `sequencer` as a 32-bit integer, and "
                "fencing tokens are larger. Use the crate in sdk/rust. Any other client: send a User-Agent",
            )
        command = self._command(caller, name, query)
        self._quotas.check_lease(caller.principal.key_id, (command.key, command.id))
        if query.wait:
            lease = await self._waiting.acquire(caller, command, query.wait, keep_id=keep_id)
        else:
            lease = await self._try(caller, command, keep_id=keep_id)
        if not keep_id and caller.has_hung_up():  # else it would stay granted for its ttl
            self._leases.give_up(command.key, lease.id)
            raise ClientDisconnect
        return _acquired(caller, command, lease)

    def _command(self, caller: Caller, name: bytes, query: AcquireQuery) -> Acquire:
        """The command. Raises `ApiProblem`, 400, for parameters that do not fit together."""
        kind, units, capacity = _units(query)
        longest = self._max_wait
        if query.wait > longest:
            raise ApiProblem(
                "malformed", f"`wait` must be at most {longest:g} seconds; then ask again"
            )
        command = Acquire(
            _key(kind, name),
            query.id or self._leases.late_copies.new_id(),
            query.client_id or caller.principal.name,
            query.ttl,
            units,
            capacity,
            queue=bool(query.wait),
            priority=query.priority,
            note=query.note,
            address=caller.ip,
            trace=self._leases.trace,
        )
        self._check(command)
        return command

    def _check(self, command: Command) -> None:
        """Raises `ApiProblem`, 400, for values that are out of bounds."""
        if flaw := self._bounds.flaw(command):
            raise ApiProblem("malformed", flaw)

    async def _try(self, caller: Caller, command: Acquire, *, keep_id: bool) -> AcquiredLease:
        """Acquire without waiting."""
        leases = self._leases
        async with self._quotas.acquiring.turn(caller.principal.key_id):
            try:
                answer = await leases.ask(caller.principal, command)
                reply = answer.reply
                left = leases.remaining(reply.ttl, answer.sent) if type(reply) is Granted else 0.0
            except BackendUnavailable:
                if not keep_id:  # the caller does not know this id, so it cannot release it
                    leases.give_up(command.key, command.id)
                raise
        if type(reply) is not Granted:
            raise not_acquired(reply, command.key)
        return AcquiredLease(command.id, reply.token, reply.slots, left)

    # -- renew --------------------------------------------------------------------------------------

    @route(
        "PATCH",
        PATH,
        on_path(Scope.ACQUIRE),
        query=RenewQuery,
        body=LeaseIdBody,
        id_in_body=True,
        answers={200: Extended},
        problems=(409, 410),
    )
    async def renew(self, caller: Caller, name: bytes, query: RenewQuery) -> Response:
        """Renew a lease."""
        if query.id is None:
            raise ApiProblem(
                "malformed", "give the lease id: in Dibs-Lease-Id, in the body or in id="
            )
        command = Renew(_key(query.kind, name), query.id, query.ttl)
        self._check(command)
        async with self._quotas.renewing.turn(caller.principal.key_id):
            answer = await self._leases.ask(caller.principal, command)
        reply = answer.reply
        if type(reply) is not Renewed and type(reply) is not Granted:
            raise _not_renewed(reply, query.kind)
        left = self._leases.remaining(reply.ttl, answer.sent)
        if is_seaplane_sdk(caller.headers):
            return done_response(caller.headers)
        return json_response(Extended(200, "Ok", query.ttl, round(left, 3), moment(left)))

    # -- release ------------------------------------------------------------------------------------

    @route(
        "DELETE",
        PATH,
        on_path(Scope.ACQUIRE, forced=Scope.FORCE),
        query=ReleaseQuery,
        body=LeaseIdBody,
        id_in_body=True,
        answers={200: (Done, Forced)},
        problems=(404, 410),
    )
    async def release(self, caller: Caller, name: bytes, query: ReleaseQuery) -> Response:
        """Release a lease; with force=true, end those of others.

        A lease id that waits leaves the queue.
        """
        lease_id, key = query.id, _key(query.kind, name)
        if query.force:
            lease = query.lease if lease_id is None else fingerprint(lease_id)
            return await self._force(caller, key, query, lease)
        if lease_id is None:
            raise ApiProblem(
                "malformed",
                "give the lease `id`; to end another holder's lease, give force=true and a `reason`",
            )
        if query.reason or query.now or query.lease:
            raise ApiProblem("malformed", "`lease`, `reason` and `now` need force=true")
        late = self._leases.late_copies
        async with self._quotas.renewing.turn(caller.principal.key_id):
            # another server can still send the Acquire of an id that this one did not make
            tombstone = 0.0 if late.was_made(lease_id) else late.tombstone
            command = Release(key, lease_id, tombstone=tombstone)
            reply = (await self._leases.ask(caller.principal, command)).reply
        if isinstance(reply, Failed):
            raise failure(reply)
        if type(reply) is not Released:
            raise _no_such_lease(query.kind)
        return done_response(caller.headers)

    async def _force(
        self, caller: Caller, key: bytes, query: ReleaseQuery, lease: str | None
    ) -> Response:
        """End leases of others. The audit line is written before that is done."""
        command = Revoke(key, lease, query.reason, query.now)
        self._check(command)
        who = caller.principal
        async with self._quotas.reading.turn(who.key_id):
            status = (await self._leases.runtime.call(Inspect(key))).reply
        if isinstance(status, Status) and not status.holders:
            raise _not_held(query.kind)  # and no line is written
        if not self._audit.may_force(who):
            raise too_often()
        await self._audit.write(
            who,
            "force release",
            key.partition(b":")[2],
            {"kind": query.kind, "reason": query.reason, "now": query.now, "lease": lease},
        )
        async with self._quotas.renewing.turn(who.key_id):
            reply = (await self._leases.ask(who, command)).reply
        if not isinstance(reply, Revoked):
            raise failure(reply)
        if not reply.count:
            raise _not_held(query.kind)
        return json_response(
            Forced(200, "Ok", reply.count, round(reply.ends_in, 3), _warning(query, reply))
        )

    # -- inspect ------------------------------------------------------------------------------------

    @route("GET", PATH, SEEING, query=LookQuery, answers={200: LockShown}, problems=(404,))
    async def look(self, caller: Caller, name: bytes, query: LookQuery) -> Response:
        """Who holds it."""
        if not caller.allowed:
            raise _not_held(query.kind)
        who, inspect = caller.principal, Inspect(_key(query.kind, name))
        async with self._quotas.reading.turn(who.key_id):
            reply = (await self._leases.ask(who, inspect)).reply
        if not isinstance(reply, Status):
            raise failure(reply)
        if not reply.holders:
            raise _not_held(query.kind)
        return json_response(lock_shown(reply))


def _key(kind: str, name: bytes) -> bytes:
    return b"%b:%b" % (kind.encode(), name)


def _units(query: AcquireQuery) -> tuple[str, int, int]:
    """The kind of key, the units, and the capacity. Raises `ApiProblem`, 400."""
    if query.mode is not None:
        if query.kind not in (None, "rwlock") or query.capacity or query.units:
            raise ApiProblem(
                "malformed", "`mode` is for a readers-writer lock, without `capacity` and `units`"
            )
        return "rwlock", MANY if query.mode == "write" else 1, MANY
    if query.kind == "rwlock":
        raise ApiProblem("malformed", "a readers-writer lock needs mode=read or mode=write")
    if query.capacity is not None or query.kind == "semaphore":
        if query.kind not in (None, "semaphore"):
            raise ApiProblem(
                "malformed", f"a {query.kind} has no capacity: only a semaphore has one"
            )
        if query.capacity is None:
            raise ApiProblem("malformed", "a semaphore needs `capacity`")
        units = query.units or 1
        if units > query.capacity:
            raise ApiProblem(
                "malformed", f"`units` is {units}, more than `capacity` {query.capacity}"
            )
        return "semaphore", units, query.capacity
    if query.units is not None and query.units != 1:
        raise ApiProblem("malformed", "`units` is for a semaphore: give its `capacity` too")
    return query.kind or "lock", 1, 1


def _acquired(caller: Caller, command: Acquire, lease: AcquiredLease) -> Response:
    remaining = max(lease.remaining, 0.0)
    kind = command.key.partition(b":")[0]
    held = HeldAnswer(
        lease.id,
        kind.decode(),
        lease.token,
        command.ttl,
        round(remaining, 3),
        moment(remaining),
        command.units if command.units < MANY else 1,
        lease.slots,
    )
    location = b"%b?kind=%b" % (caller.scope["raw_path"], kind)
    return json_response(held, 200, (b"location", location))


def _not_renewed(reply: Reply, kind: str) -> ApiProblem:
    match reply:
        case Lost(reason="revoked"):
            why = f": {reply.detail}" if reply.detail else ""
            return ApiProblem("lost", f"the lease was revoked{why}")
        case Lost():
            return _no_such_lease(kind)
        case Queued():
            return still_waiting(reply)
        case _:
            return failure(reply)


def _no_such_lease(kind: str) -> ApiProblem:
    return ApiProblem(
        "lost",
        f"no {kind} of this name is held with this id: it expired, was released, or never existed. "
        f"{_OTHER_KINDS}",
    )


def _not_held(kind: str) -> ApiProblem:
    return ApiProblem("not-held", f"no {kind} of this name is held. {_OTHER_KINDS}")


def _warning(query: ReleaseQuery, reply: Revoked) -> str:
    if query.now:
        return (
            "the lock is free now, but its former holder may still be working: "
            "only a resource that checks fencing tokens is safe"
        )
    return (
        "the holder is notified and cannot renew any more; "
        f"the lock stays held until the lease ends, in at most {reply.ends_in:.0f} s"
    )
