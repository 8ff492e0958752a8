"""`/v1/batch`: many commands in one request, each with a reply of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from starlette.responses import Response

from dibs.core.names import KINDS, MAX_NAME, fingerprint
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
from dibs.server.api.bounds import CommandBounds
from dibs.server.api.notifications import NotificationStreams
from dibs.server.api.parameters import BodyReader
from dibs.server.api.problems import ApiProblem, lacking, too_often
from dibs.server.api.reading import KeyReader, bounded
from dibs.server.api.responses import bytes_response
from dibs.server.api.routing import EACH_COMMAND, Caller, route
from dibs.server.audit import Audit
from dibs.server.auth.policy import Principal, Scope
from dibs.server.leases import LeaseService
from dibs.server.placement.router import Moving
from dibs.server.quotas import MIXED_TURN_TIMEOUT, FairQueue, Quotas
from dibs.stores.http.names import encoded
from dibs.stores.http.wire import Batch, BatchAnswer, to_model, to_wire
from dibs.stores.port import MAX_BATCH

JSON, MSGPACK = b"application/json", b"application/msgpack"

MOST_SLOTS = 8_192
"""Numbered slots in a batch: they make an acquire or a resize expensive."""

MOVING_RECHECK = 1.0
"""Seconds after which an acquire in a directory that moves can be sent again."""

COMMANDS = (Acquire, Renew, Release, Resize, Inspect, Revoke)

_NOT_URGENT = frozenset({Acquire, Resize, Inspect, Revoke})
"""Commands that are refused under load, so that renewals and releases go on."""

_ENDS = frozenset({Released, Unknown, Lost, Gone})

_decoders: dict[bytes, Callable[[bytes], Batch]] = {
    JSON: msgspec.json.Decoder(Batch).decode,
    MSGPACK: msgspec.msgpack.Decoder(Batch).decode,
}
_encoders: dict[bytes, Callable[[object], bytes]] = {
    JSON: msgspec.json.Encoder().encode,
    MSGPACK: msgspec.msgpack.Encoder().encode,
}


@dataclass(eq=False)
class BatchRoutes:
    """Applies commands that travel together."""

    _leases: LeaseService
    _quotas: Quotas
    _reader: KeyReader
    _streams: NotificationStreams
    _audit: Audit
    _bounds: CommandBounds
    _bodies: BodyReader
    _max_body: int

    @route(
        "POST",
        "/v1/batch",
        EACH_COMMAND,
        body=Batch,
        answers={200: BatchAnswer},
        problems=(413, 415),
    )
    async def batch(self, caller: Caller) -> Response:
        """Many commands in one request, each with a reply of its own.

        A command that is not allowed, or fails, costs the others nothing.
        """
        commands = await self._commands(caller)
        key_id, kinds = caller.principal.key_id, set(map(type, commands))
        queue, busy, cost = self._queue(kinds), "", max(len(commands), 1)
        try:
            await queue.begin(key_id, cost, None if kinds <= _NOT_URGENT else MIXED_TURN_TIMEOUT)
        except ApiProblem as problem:
            if kinds <= _NOT_URGENT:
                raise
            queue, busy = self._quotas.renewing, problem.detail
            await queue.begin(key_id, cost)
        try:
            replies = await self._apply(caller, commands, busy)
        finally:
            queue.end(key_id, cost)
        wanted = MSGPACK if MSGPACK in caller.headers.get(b"accept", b"") else JSON
        body = _encoders[wanted](BatchAnswer(tuple(map(to_wire, replies))))
        return bytes_response(body, wanted.decode())

    def _queue(self, kinds: set[type]) -> FairQueue:
        """The queue where a batch of these commands waits for its turn."""
        quotas = self._quotas
        if kinds & {Acquire, Resize}:
            return quotas.acquiring
        return quotas.reading if kinds & _NOT_URGENT else quotas.renewing  # a Revoke looks first

    async def _commands(self, caller: Caller) -> Sequence[Command | Failed]:
        """The commands of the body, or `Failed` for a malformed key. Raises `ApiProblem`: 400, 413, 415."""
        kind = caller.headers.get(b"content-type", JSON).partition(b";")[0].strip().lower()
        decoder = _decoders.get(kind)
        if decoder is None:
            raise ApiProblem(
                "media-type", "send a batch as application/json or application/msgpack"
            )
        body = await self._bodies.read(caller, self._max_body)
        try:
            commands = decoder(body).commands
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiProblem("malformed", f"the batch: {error}") from None
        if len(commands) > MAX_BATCH:
            raise ApiProblem("malformed", f"a batch can have at most {MAX_BATCH} commands")
        return list(map(_command, commands))

    async def _apply(
        self, caller: Caller, commands: Sequence[Command | Failed], busy: str
    ) -> Sequence[Reply]:
        """Apply all commands. `busy`: why commands in `_NOT_URGENT` are refused; empty if they are not."""
        trace = self._leases.trace if len(commands) == 1 else ""  # else it has several traces
        usage = self._quotas.of(caller.principal.key_id)
        before = usage.reserved
        checked: list[Command | Reply] = []
        slots = 0
        for command in commands:
            if isinstance(command, Acquire | Resize) and 1 < command.units <= MAX_SLOTS:
                slots += command.units
            if busy and type(command) in _NOT_URGENT:
                checked.append(Failed("busy", busy))
            elif slots > MOST_SLOTS and type(command) in _NOT_URGENT:
                checked.append(Failed("busy", f"at most {MOST_SLOTS:,} slots fit into a batch"))
            else:
                checked.append(self._checked(caller, command, trace))
        reserved = usage.reserved - before
        try:
            return await self._apply_checked(caller.principal, commands, checked)
        finally:
            usage.reserved -= reserved

    async def _apply_checked(
        self,
        who: Principal,
        commands: Sequence[Command | Failed],
        checked: list[Command | Reply],
    ) -> Sequence[Reply]:
        self._audit_refusals(who, commands, checked)
        revokes = ((n, each) for n, each in enumerate(checked) if isinstance(each, Revoke))
        for count, (number, revoke) in enumerate(list(revokes)):
            if count:  # it is the one command that reads all holders of its key
                checked[number] = Failed("busy", "at most 1 revocation fits into a batch")
            else:
                checked[number] = await self._audited(who, revoke, checked)
        sent = [each for each in checked if isinstance(each, COMMANDS)]
        results: Sequence[CallResult] = ()
        if sent:
            results = await self._ask(who, sent)
            _check_any(results)
        replies = map(self._reply, sent, results)
        return [next(replies) if isinstance(each, COMMANDS) else each for each in checked]

    # -- before the store ---------------------------------------------------------------------------

    def _checked(self, caller: Caller, command: Command | Failed, trace: str) -> Command | Reply:
        """The command for the store, or the reply to one that is not allowed."""
        if isinstance(command, Failed):
            return command
        who, runtime = caller.principal, self._leases.runtime
        reply = refusal(self._bounds, who, command)
        if reply is not None:
            return reply
        try:
            if type(command) is Acquire:
                self._quotas.reserve(who.key_id, command)
            elif type(command) is Release and command.retain:
                self._quotas.check_lease(who.key_id, (command.key, command.id))
        except ApiProblem as problem:
            return Failed("busy", problem.detail)
        if type(command) is Acquire:
            command.address = caller.ip  # type: ignore[misc]
            command.trace = command.trace or trace  # type: ignore[misc]
        inbox = getattr(command, "inbox", "")
        if inbox:
            stream = self._streams.of(inbox, who.key_id)
            if stream is not None:
                self._streams.expect(fingerprint(command.id), stream)  # type: ignore[union-attr]
            command.inbox = runtime.inbox  # type: ignore[union-attr,misc]
        return command

    def _audit_refusals(
        self,
        who: Principal,
        commands: Sequence[Command | Failed],
        checked: Sequence[Command | Reply],
    ) -> None:
        """Log who tried to revoke leases without permission."""
        for command, reply in zip(commands, checked, strict=True):
            if type(command) is Revoke and type(reply) is Failed and reply.reason == "forbidden":
                name = command.key.partition(b":")[2]
                self._audit.deny(who, "revoke in POST /v1/batch", name)

    async def _audited(
        self, who: Principal, revoke: Revoke, batch: Sequence[Command | Reply]
    ) -> Command | Reply:
        """Write the audit line of a revocation, and return it. Without holders, return its reply instead."""
        key = revoke.key
        if not any(type(each) is Acquire and each.key == key for each in batch):
            (found,) = await self._leases.runtime.call_all([Inspect(key)])
            status = found.reply if isinstance(found, TimedReply) else None
            if isinstance(status, Status) and not status.holders:
                return Revoked(0, 0.0)
        if not self._audit.may_force(who):
            return Failed("busy", too_often().detail)
        kind, _, name = key.partition(b":")
        detail = {"kind": kind.decode(), "reason": revoke.reason, "now": revoke.now}
        await self._audit.write(who, "force release", name, {**detail, "lease": revoke.lease})
        return revoke

    # -- at the store -------------------------------------------------------------------------------

    async def _ask(self, who: Principal, commands: Sequence[Command]) -> Sequence[CallResult]:
        """The result of each command. Equal looks with nothing between them are one look."""
        sent: list[Command] = []
        numbers: list[int] = []
        looks: dict[bytes, int] = {}
        for command in commands:
            if type(command) is not Inspect:
                looks.pop(command.key, None)  # it may change what the next look finds
            number = looks.get(command.key, len(sent))
            numbers.append(number)
            if number == len(sent):
                sent.append(command)
            if type(command) is Inspect:
                looks[command.key] = number
        results = await self._reader.ask_in_parts(who, sent)
        return bounded(results[number] for number in numbers)

    def _reply(self, command: Command, result: CallResult) -> Reply:
        """The reply to a client. A lease that has ended gets no more notifications."""
        reply: Reply
        if isinstance(result, Moving):
            reply = Refused("moving", recheck_in=MOVING_RECHECK)
        elif isinstance(result, DibsError):
            return Failed("away", str(result))
        else:
            reply = result.reply
        if isinstance(command, Acquire) and isinstance(reply, Refused):
            self._streams.forget(fingerprint(command.id))
        if type(reply) in _ENDS and isinstance(command, Acquire | Renew | Release | Resize):
            self._streams.forget(fingerprint(command.id))
        return reply


def _command(struct: object) -> Command | Failed:
    try:
        command: Command = to_model(struct)
    except ValueError:
        return Failed("invalid", _KEY_FLAW)
    return command


_KEY_FLAW = (
    "`key` must be KIND:NAME in URL-safe base64 without padding: "
    f"{encoded(b'lock:jobs/b')} for lock:jobs/b"
)


def _check_any(results: Sequence[CallResult]) -> None:
    """Raises the first error if all commands failed: then the whole batch has failed.

    An acquire in a directory that moves is refused, and does not count as failed.
    """
    first = results[0]
    failed = (isinstance(each, DibsError) and not isinstance(each, Moving) for each in results)
    if isinstance(first, DibsError) and all(failed):
        raise first


# -- permissions ------------------------------------------------------------------------------------

_KINDS = frozenset(kind.encode() for kind in KINDS)

_SCOPES: dict[type, Scope] = {
    Acquire: Scope.ACQUIRE,
    Renew: Scope.ACQUIRE,
    Release: Scope.ACQUIRE,
    Resize: Scope.ACQUIRE,
    Inspect: Scope.READ,
    Revoke: Scope.FORCE,
}


def refusal(bounds: CommandBounds, who: Principal, command: Command) -> Reply | None:
    """The reply to a command that is not allowed; None for one that is."""
    kind, colon, name = command.key.partition(b":")
    if not colon or kind not in _KINDS or not 1 <= len(name) <= MAX_NAME:
        return Failed("invalid", f"a key must be KIND:NAME, with a name of 1 to {MAX_NAME} bytes")
    scope = _SCOPES[type(command)]
    if not who.may(scope, name):
        if type(command) is Inspect:
            return Status(command.key, 0)  # it looks as if it had never been used
        return Failed("forbidden", lacking(scope, name))
    flaw = bounds.flaw(command)
    return None if flaw is None else Failed("invalid", flaw)
