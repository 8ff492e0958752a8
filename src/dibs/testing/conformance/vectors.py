"""Vectors: plans of commands with the answers of the ledger, replayed on a store.

`vectors.jsonl` has a plan a line, written from the ledger in Python. A plan is a list of steps:

    {"wait": 1.7}                                       the store's time passes, in seconds
    {"wall": -3600.0}                                   the wall clock alone is stepped, in seconds
    {"batch": [[key, command], …],                      a batch of commands, applied at once
     "replies": [reply, …],                             what each is answered
     "notifications": [[key, inbox, notification], …]}  what is sent meanwhile

Keys are in hexadecimal; messages are lists as in `dibs.core.codec`. Batches are sent by a client whose
inbox is called "here"; another one, "there", only listens. A plan begins with `ManualClock()`.

A store without a clock replays the same plans, and is compared with the ledger that runs beside it: see
`observer`. There, stepping the wall clock has no effect on the store.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any, cast

from dibs.core.codec import decode_command, decode_notification, decode_reply, encode
from dibs.core.ledger import HOLDERS_NAMED
from dibs.core.names import fingerprint
from dibs.core.proof import is_proven
from dibs.model import Acquire, Command, Notification, Refused, Renew, Reply
from dibs.testing.conformance.observer import ROUNDING, ObservedLedger, TokenOrder, without_tokens
from dibs.testing.conformance.suite import Suite, needing
from dibs.testing.conformance.world import World
from dibs.testing.connections import TestedConnection

PLANS: Sequence[str] = files(__package__).joinpath("vectors.jsonl").read_text().splitlines()

CLOSE = 1e-6
"""Seconds by which a store's arithmetic may differ from the ledger's."""

type Step = Mapping[str, Any]


class Vectors(Suite):
    """The ledger's own answers, word for word."""

    @needing("manual")
    async def test_every_vector_is_answered_as_the_ledger_does(self, world: World) -> None:
        replay = Replay if world.store.capabilities.clock else ObservedReplay
        for number, plan in enumerate(PLANS):
            steps = json.loads(plan)["steps"]
            if not self.replays(steps):
                continue
            afresh = world.another(f"vector-{number}")
            try:
                following = replay(afresh, await afresh.connect(), await afresh.connect())
                for step in steps:
                    await following.follow(step)
            except AssertionError as error:
                raise AssertionError(f"plan {number} of vectors.jsonl: {error}") from error
            finally:
                await afresh.close()


class Replay:
    """Replay of a plan, on keys of its own, for a store with a clock."""

    def __init__(self, world: World, here: TestedConnection, there: TestedConnection) -> None:
        self._world = world
        self._here = here
        self._inboxes = {"here": here.inbox, "there": there.inbox, "": ""}
        self._listeners = {here.inbox: here, there.inbox: there}
        self._ids: dict[str, str] = {}
        self._sent: list[Notification] = []
        """By the ledger, since the plan began."""
        self._arrived: list[Notification] = []
        """And not looked for yet."""

    async def follow(self, step: Step) -> None:
        """Raises `AssertionError` where the store answers something else."""
        if "wait" in step:
            self._world.pass_time(step["wait"])
        elif "wall" in step:
            self._world.clock.step_stamp(step["wall"])
        else:
            await self._apply(step)

    async def _apply(self, step: Step) -> None:
        batch = [self._command(*item) for item in step["batch"]]
        self._ids |= {fingerprint(each.id): each.id for each in batch if isinstance(each, Acquire)}
        expected, notifications = self.expected(step, batch)
        replies = await self._here.apply(batch)
        for command, reply, wanted in zip(batch, replies, expected, strict=True):
            assert self.same(plain(reply), plain(wanted), command.key), (command, reply, wanted)
        await self._check_notifications(
            [replace(each, proof="good" if each.proof else "") for each in notifications]
        )

    def expected(
        self, step: Step, batch: Sequence[Command]
    ) -> tuple[Sequence[Reply], Sequence[Notification]]:
        """Return the ledger's replies and notifications."""
        replies = [
            decode_reply(reply, command.key)
            for reply, command in zip(step["replies"], batch, strict=True)
        ]
        return replies, [self._notification(*item) for item in step["notifications"]]

    def same[M: (Reply, Notification)](self, found: M, wanted: M, key: bytes) -> bool:
        """Whether the store says what the ledger says."""
        return close(found, wanted)

    def _key(self, written: str) -> bytes:
        return self._world.key(bytes.fromhex(written))

    def _command(self, key: str, written: Sequence[Any]) -> Command:
        command = decode_command(written, self._key(key))
        if isinstance(command, Acquire | Renew):
            return replace(command, inbox=self._inboxes[command.inbox])
        return command

    def _notification(self, key: str, inbox: str, written: Sequence[Any]) -> Notification:
        return decode_notification(written, self._key(key), self._inboxes[inbox])

    async def _check_notifications(self, expected: Sequence[Notification]) -> None:
        """Check that the ledger's notifications arrive, and no others. Repeats are allowed."""
        self._sent += expected
        for wanted in without_passing_heads(expected):
            while not self._has_arrived(wanted):
                listener = self._listeners[wanted.inbox]
                assert await self._world.notified(listener, self._arrives), f"never sent: {wanted}"
        for arrived in self._arrived:
            assert any(self.same(arrived, each, each.key) for each in self._sent), (
                f"sent by nobody: {arrived}"
            )
        self._arrived.clear()

    def _arrives(self, notification: Notification) -> bool:
        self._arrived.append(self._judged(notification))
        return True

    def _has_arrived(self, wanted: Notification) -> bool:
        return any(self.same(arrived, wanted, wanted.key) for arrived in self._arrived)

    def _judged(self, notification: Notification) -> Notification:
        """With a word on its proof for the proof, which every store computes in its own way."""
        if not notification.proof:
            return notification
        proven = is_proven(notification, self._ids[notification.lease])
        return replace(notification, proof="good" if proven else "bad")


class ObservedReplay(Replay):
    """Replay of a plan for a store without a clock: see `observer`."""

    def __init__(self, world: World, here: TestedConnection, there: TestedConnection) -> None:
        super().__init__(world, here, there)
        self._observer = ObservedLedger(world.clock)
        self._tokens = TokenOrder()

    def expected(
        self, step: Step, batch: Sequence[Command]
    ) -> tuple[Sequence[Reply], Sequence[Notification]]:
        replies, notifications = self._observer.apply(batch)
        return replies, [each for each in notifications if each.inbox]

    def same[M: (Reply, Notification)](self, found: M, wanted: M, key: bytes) -> bool:
        (one, tokens), (other, expected) = without_tokens(found), without_tokens(wanted)
        return close(one, other, ROUNDING) and self._tokens.agree(key, expected, tokens)


def plain(reply: Reply) -> Reply:
    """Refusals name holders in any order, and of many holders any."""
    if not isinstance(reply, Refused):
        return reply
    holders = sorted(reply.holders, key=lambda holder: (holder.token, holder.lease))
    return replace(reply, holders=tuple(holders) if len(holders) < HOLDERS_NAMED else ())


def without_passing_heads(notifications: Sequence[Notification]) -> Iterator[Notification]:
    """All but those to a waiter that was the head of a queue only in the middle of the batch."""
    for number, each in enumerate(notifications):
        later = notifications[number + 1 :]
        if each.event != "head" or not any(
            other.lease == each.lease or (other.event, other.key) == ("head", each.key)
            for other in later
        ):
            yield each


def close(one: Reply | Notification, other: Reply | Notification, within: float = CLOSE) -> bool:
    """Two messages are the same, but for the last digits of their times: by `within` seconds."""
    return _close(encode(one), encode(other), within)


def _close(one: Any, other: Any, within: float) -> bool:
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        ones, others = cast(Sequence[Any], one), cast(Sequence[Any], other)
        return len(ones) == len(others) and all(
            _close(*pair, within) for pair in zip(ones, others, strict=True)
        )
    if isinstance(one, float) and isinstance(other, float):
        return one == other or abs(one - other) < within
    return bool(one == other)
