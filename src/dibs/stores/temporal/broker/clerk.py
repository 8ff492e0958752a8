"""What comes of a call: each of its commands applied, and the answer."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dibs.core.codec import encode
from dibs.core.names import fingerprint
from dibs.errors import DibsError
from dibs.model import Acquire, Command, Failed, Granted, Inspect, Reply, Revoke, Status
from dibs.stores.temporal.broker.clock import BrokerClock
from dibs.stores.temporal.broker.desk import Desk
from dibs.stores.temporal.broker.parts import AN_ANSWER, curt, in_brief, size_of
from dibs.stores.temporal.broker.post import Telling
from dibs.stores.temporal.protocol.owners import owner_of
from dibs.stores.temporal.protocol.wire import (
    FORMAT,
    BrokerAnswer,
    BrokerCall,
    Packed,
    too_new,
    unpack_command,
)


class Clerk:
    """Applies calls to the desk, one command after the other."""

    def __init__(self, desk: Desk, clock: BrokerClock, telling: Telling, *, by_hand: bool) -> None:
        self._desk = desk
        self._clock = clock
        self._telling = telling
        self._by_hand = by_hand

    def answer(self, call: BrokerCall, inbox: str, granted: list[str]) -> BrokerAnswer:
        """`granted` gets the ids whose owners first hear of their grant by this."""
        commands = [self._command(packed, call) for packed in call.commands]
        replies: list[Packed] = []
        size = 0
        for command in commands:
            reply = self._reply(command, call, inbox, granted)
            if isinstance(reply, Status) and inbox:
                reply = in_brief(reply, _leases(commands))
            replies.append(encode(curt(reply) if size > AN_ANSWER else reply))
            size += size_of(replies[-1]) if len(call.commands) > 1 else 0
        return BrokerAnswer(replies, call.number, self._clock.now())

    def status(self) -> Reply:
        """Who holds and who waits, as a query asks."""
        return self._desk.status(*self._clock.of_query())

    def _reply(
        self, command: Command | Failed, call: BrokerCall, inbox: str, granted: list[str]
    ) -> Reply:
        """No error of ours may get out, as one may end a workflow: all that is held would be lost."""
        if isinstance(command, Failed):
            return command
        try:
            if self._by_hand:
                self._clock.by_hand = call.at
            return self._applied(command, call, inbox, granted)
        except DibsError as error:
            return Failed("invalid", str(error))

    def _applied(self, command: Command, call: BrokerCall, inbox: str, granted: list[str]) -> Reply:
        now, stamp = self._clock.read()
        if isinstance(command, Acquire) and inbox and not command.inbox:
            command = replace(command, inbox=inbox)
        known = self._desk.book.get(getattr(command, "id", "")) is not None
        reply, notifications = self._desk.apply(command, now, stamp)
        if isinstance(command, Acquire) and isinstance(reply, Granted) and not known:
            granted.append(command.id)
        if call.fast and owner_of(inbox):
            self._desk.mark_fast(command, (call.workflow_id, call.run_id))
        self._telling.push(notifications)
        return reply

    def _command(self, packed: Any, call: BrokerCall) -> Command | Failed:
        newer = newer_call(call)
        if newer:
            return Failed("invalid", newer)
        if call.at is not None and not self._by_hand:
            return Failed("invalid", _OWN_TIME)
        try:
            return unpack_command(packed, self._desk.key)
        except ValueError as error:
            return Failed("invalid", str(error))


_OWN_TIME = (
    "the call says what time it is, and this broker was not started with a clock of a test's own: "
    "it goes by the server's time"
)


def _leases(commands: Iterable[Command | Failed]) -> set[str]:
    """Those that a call is about."""
    return {fingerprint(each.id) for each in commands if not isinstance(each, _WITHOUT_ID)}


_WITHOUT_ID = (Inspect, Revoke, Failed)


def newer_call(call: BrokerCall) -> str | None:
    """Why a call of a later release is refused; None for one that is not."""
    return too_new("the call", call.format, "the worker of this broker", FORMAT)
