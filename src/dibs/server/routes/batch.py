"""`/v1/batch`: many commands in one call, each with an answer of its own."""

from collections.abc import Callable, Sequence

import msgspec
from starlette.responses import Response

from dibs.core.names import fingerprint
from dibs.errors import DibsError
from dibs.model import (
    MAX_SLOTS,
    Acquire,
    Command,
    Failed,
    Gone,
    Inspect,
    Lost,
    Refused,
    Release,
    Released,
    Renew,
    Reply,
    Resize,
    Revoke,
    Revoked,
    Status,
    Unknown,
)
from dibs.runtime.port import CallResult, TimedReply
from dibs.server.api.problems import ApiProblem, too_often
from dibs.server.api.responses import bytes_response
from dibs.server.api.routing import EACH_COMMAND, Operation
from dibs.server.call import Call
from dibs.server.quotas import FairQueue, Quotas
from dibs.server.reach import bounded
from dibs.server.vetting import refused
from dibs.stores.http.wire import Batch, BatchAnswer, to_model, to_wire
from dibs.stores.port import MAX_BATCH

JSON, MSGPACK = b"application/json", b"application/msgpack"

MAX_REVOKES = 1
"""In a batch. A revocation is the one command that reads all holders of its key."""

MOST_SLOTS = 8_192
"""In a batch. Numbered slots are what makes an acquire or a resize expensive."""

_decoders: dict[bytes, Callable[[bytes], Batch]] = {
    JSON: msgspec.json.Decoder(Batch).decode,
    MSGPACK: msgspec.msgpack.Decoder(Batch).decode,
}
_encoders: dict[bytes, Callable[[object], bytes]] = {
    JSON: msgspec.json.Encoder().encode,
    MSGPACK: msgspec.msgpack.Encoder().encode,
}


async def batch(call: Call) -> Response:
    """Have all of them applied; they travel together."""
    ops = await _ops(call)
    quotas, key_id, kinds = call.service.quotas, call.principal.key_id, set(map(type, ops))
    queue, busy, cost = _queue(quotas, kinds), "", max(len(ops), 1)
    try:
        await queue.begin(key_id, cost)
    except ApiProblem as problem:
        if kinds <= _PUT_OFF:
            raise
        queue, busy = quotas.renewing, problem.detail  # renewals and releases go on
        await queue.begin(key_id, cost)
    try:
        return await _apply(call, ops, busy)
    finally:
        queue.end(key_id, cost)


def _queue(quotas: Quotas, kinds: set[type]) -> FairQueue:
    """Where a batch of these commands waits for its turn."""
    if kinds & {Acquire, Resize}:
        return quotas.acquiring
    return quotas.reading if kinds & _PUT_OFF else quotas.renewing  # a revocation looks first


async def _apply(call: Call, ops: Sequence[Command | Failed], busy: str) -> Response:
    """Apply all of them. `busy`: why those of `_PUT_OFF` are refused; empty if they are not."""
    service = call.service
    trace = call.service.trace if len(ops) == 1 else ""  # a batch may serve several traces
    account = service.quotas.of(call.principal.key_id)
    before = account.reserved
    vetted: list[Command | Reply] = []
    slots = 0
    for op in ops:
        if isinstance(op, Acquire | Resize) and 1 < op.units <= MAX_SLOTS:
            slots += op.units
        if busy and type(op) in _PUT_OFF:
            vetted.append(Failed("busy", busy))
        elif slots > MOST_SLOTS and type(op) in _PUT_OFF:
            vetted.append(Failed("busy", f"at most {MOST_SLOTS:,} slots fit into a batch"))
        else:
            vetted.append(_vetted(call, op, trace))
    reserved = account.reserved - before
    try:
        return await _apply_vetted(call, ops, vetted)
    finally:
        account.reserved -= reserved


async def _apply_vetted(
    call: Call, ops: Sequence[Command | Failed], vetted: list[Command | Reply]
) -> Response:
    service = call.service
    for n in [n for n, each in enumerate(vetted) if type(each) is Revoke][MAX_REVOKES:]:
        vetted[n] = Failed("busy", f"at most {MAX_REVOKES} revocation fits into a batch")
    _audit_refusals(call, ops, vetted)
    await _write_down(call, vetted)
    commands = [each for each in vetted if isinstance(each, COMMANDS)]
    told: Sequence[CallResult] = ()
    if commands:
        told = await _ask(call, commands)
        if service.spans is not None:
            await service.spans.look_ahead()
        _check_any(told)
    outcomes = map(_said, [call] * len(commands), commands, told)
    return _answer(
        call, [next(outcomes) if isinstance(each, COMMANDS) else each for each in vetted]
    )


async def _ask(call: Call, commands: Sequence[Command]) -> Sequence[CallResult]:
    """What came of each command. Equal looks with nothing between them are one look."""
    sent: list[Command] = []
    places: list[int] = []
    looks: dict[bytes, int] = {}
    for command in commands:
        if type(command) is not Inspect:
            looks.pop(command.key, None)  # it may change what the next look finds
        place = looks.get(command.key, len(sent))
        places.append(place)
        if place == len(sent):
            sent.append(command)
        if type(command) is Inspect:
            looks[command.key] = place
    told = await call.service.reader.ask_in_parts(call.principal, sent)
    return bounded(told[place] for place in places)


async def _ops(call: Call) -> Sequence[Command | Failed]:
    """The commands of the body, or what is wrong with a key. Raises `ApiProblem`: 400, 413, 415."""
    kind = call.headers.get(b"content-type", JSON).partition(b";")[0].strip().lower()
    decoder = _decoders.get(kind)
    if decoder is None:
        raise ApiProblem("media-type", "send a batch as application/json or application/msgpack")
    body = await call.body(call.service.limits.max_body)
    try:
        commands = decoder(body).commands
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiProblem("malformed", f"the batch: {error}") from None
    if len(commands) > MAX_BATCH:
        raise ApiProblem("malformed", f"a batch can have at most {MAX_BATCH} commands")
    return list(map(_op, commands))


def _op(struct: object) -> Command | Failed:
    try:
        command: Command = to_model(struct)
    except ValueError as error:
        return Failed("invalid", f"key: {error}")
    return command


def _vetted(call: Call, command: Command | Failed, trace: str) -> Command | Reply:
    """A command as the store gets it, or the reply to one that is not let through."""
    if isinstance(command, Failed):
        return command
    service, who = call.service, call.principal
    reply = refused(service.limits, who, command, service.runtime.stamp)
    if reply is not None:
        return reply
    try:
        if type(command) is Acquire:
            service.quotas.reserve(who.key_id, command)
        elif type(command) is Release and command.retain:
            service.quotas.check_lease(who.key_id, (command.key, command.id))
    except ApiProblem as problem:
        return Failed("busy", problem.detail)
    if type(command) is Acquire:
        command.address = call.ip  # type: ignore[misc]
        command.trace = command.trace or trace  # type: ignore[misc]
    inbox = getattr(command, "inbox", "")
    if inbox:
        stream = service.post.of(inbox, who.key_id)
        if stream is not None:
            service.post.expect(fingerprint(command.id), stream)  # type: ignore[union-attr]
        command.inbox = service.runtime.inbox  # type: ignore[union-attr,misc]
    return command


def _audit_refusals(
    call: Call, ops: Sequence[Command | Failed], vetted: Sequence[Command | Reply]
) -> None:
    """Whoever would end other people's leases, and may not, is remembered too."""
    for op, reply in zip(ops, vetted, strict=True):
        if type(op) is Revoke and type(reply) is Failed and reply.reason == "forbidden":
            name = op.key.partition(b":")[2]
            call.service.audit.deny(call.principal, "revoke in POST /v1/batch", name)


async def _write_down(call: Call, vetted: list[Command | Reply]) -> None:
    """Write down who ends other people's leases, before it is done; where nobody holds, nothing is done."""
    service, seen = call.service, set[bytes]()
    revokes: dict[int, Revoke] = {}
    for number, command in enumerate(vetted):
        if type(command) is Acquire:
            seen.add(command.key)
        elif type(command) is Revoke:
            revokes[number] = command
    asked = {each.key: Inspect(each.key) for each in revokes.values() if each.key not in seen}
    told = await service.runtime.call_all(list(asked.values())) if asked else ()
    free = {
        key
        for key, each in zip(asked, told, strict=True)
        if isinstance(each, TimedReply)
        and isinstance(each.reply, Status)
        and not each.reply.holders
    }
    for number, command in revokes.items():
        kind, _, name = command.key.partition(b":")
        if command.key in free:
            vetted[number] = Revoked(0, 0.0)
        elif not service.audit.may_force(call.principal):
            vetted[number] = Failed("busy", too_often().detail)
        else:
            detail = {"kind": kind.decode(), "reason": command.reason, "now": command.now}
            detail["lease"] = command.lease
            await service.audit.write(call.principal, "force release", name, detail)


def _check_any(told: Sequence[CallResult]) -> None:
    """Raises what went wrong, if nothing came of any of them: then the whole batch has failed."""
    first = told[0]
    if isinstance(first, DibsError) and all(isinstance(each, DibsError) for each in told):
        raise first


def _said(call: Call, command: Command, told: CallResult) -> Reply:
    """What a client is told of what came of its command."""
    if isinstance(told, DibsError):
        return Failed("away", str(told))
    reply, post = told.reply, call.service.post
    if isinstance(command, Acquire) and isinstance(reply, Refused):
        post.forget(fingerprint(command.id))
    if type(reply) in _ENDS and isinstance(command, Acquire | Renew | Release | Resize):
        post.forget(fingerprint(command.id))
    return reply


def _answer(call: Call, replies: Sequence[Reply]) -> Response:
    wanted = MSGPACK if MSGPACK in call.headers.get(b"accept", b"") else JSON
    body = _encoders[wanted](BatchAnswer(tuple(map(to_wire, replies))))
    return bytes_response(body, wanted.decode())


COMMANDS = (Acquire, Renew, Release, Resize, Inspect, Revoke)

_PUT_OFF = frozenset({Acquire, Resize, Inspect, Revoke})

_ENDS = frozenset({Released, Unknown, Lost, Gone})

ROUTES = (
    Operation(
        method="POST",
        path="/v1/batch",
        needs=EACH_COMMAND,
        handler=batch,
        summary="Many commands in one call, each with an answer of its own",
        body=Batch,
        answers={200: BatchAnswer},
        problems=(413, 415),
    ),
)
