"""Brokers in a hurry, and workflows that speak to one. The sandbox loads them."""

import asyncio
from typing import Any

from temporalio import workflow

from dibs.core.codec import decode_notification, decode_reply, encode
from dibs.model import Acquire, Notification, Release, Reply
from dibs.stores.temporal import ids
from dibs.stores.temporal.wire import BrokerCall, BrokerInput, News
from dibs.temporal.broker.workflow import DibsBroker


@workflow.defn(name=ids.BROKER)
class HastyBroker(DibsBroker):
    """Leaves its history behind often, and ends soon."""

    EVENTS = 60
    IDLE = 1.0

    @workflow.init
    def __init__(self, given: BrokerInput) -> None:
        super().__init__(given)

    @workflow.run
    async def run(self, given: BrokerInput) -> None:
        await super().run(given)


@workflow.defn(name=ids.BROKER)
class BriskBroker(DibsBroker):
    """Leaves its history behind now and then."""

    EVENTS = 300

    @workflow.init
    def __init__(self, given: BrokerInput) -> None:
        super().__init__(given)

    @workflow.run
    async def run(self, given: BrokerInput) -> None:
        await super().run(given)


@workflow.defn
class Waiter:
    """A workflow that asks a broker for a lease, keeps it a moment, and gives it back: in bare signals."""

    def __init__(self) -> None:
        self._answers: dict[int, Reply] = {}
        self._pushes: list[Notification] = []
        self._leave = False

    @workflow.signal(name=ids.NEWS)
    def news(self, news: News) -> None:
        key = b"lock:x"
        for answer in news.answers:
            self._answers[answer.number] = decode_reply(answer.replies[0], key)
        self._pushes += [decode_notification(packed, key, "") for packed in news.notifications]

    @workflow.signal
    def leave(self) -> None:
        self._leave = True

    @workflow.run
    async def run(
        self, key: str, entry_id: str, hold: float, ttl: float, more: dict[str, Any]
    ) -> int:
        """Returns its token. It leaves at once, or after `hold`, or if that is -1 when it is told to."""
        broker = workflow.get_external_workflow_handle(ids.broker_id(key.encode()))
        info = workflow.info()
        fast = bool(more.pop("fast", False))
        more.setdefault("waiter_ttl", 3e8)
        ask = Acquire(key.encode(), entry_id, info.workflow_id, ttl, queue=True, **more)
        call = BrokerCall([encode(ask)], 1, info.workflow_id, info.run_id, fast)
        await broker.signal(ids.APPLY, call)
        await workflow.wait_condition(lambda: 1 in self._answers)
        token = getattr(self._answers[1], "token", 0)
        if not token:
            await workflow.wait_condition(lambda: any(p.event == "granted" for p in self._pushes))
            token = next(p.token for p in self._pushes if p.event == "granted")
        if hold > 0:
            await workflow.sleep(hold)
        elif hold < 0:
            await workflow.wait_condition(lambda: self._leave)
        end = Release(key.encode(), entry_id)
        await broker.signal(ids.APPLY, BrokerCall([encode(end)], 2, info.workflow_id, info.run_id))
        await workflow.wait_condition(lambda: 2 in self._answers)
        return token


@workflow.defn
class Crowd:
    """A workflow that asks for as many leases at once, and collects what it is told."""

    def __init__(self) -> None:
        self._answers: dict[int, list[Reply]] = {}

    @workflow.signal(name=ids.NEWS)
    def news(self, news: News) -> None:
        for answer in news.answers:
            heard = self._answers.setdefault(answer.number, [])
            heard += [decode_reply(packed, b"") for packed in answer.replies]

    @workflow.run
    async def run(self, key: str, many: int) -> list[int]:
        """Its positions in the queue, by the order in which it asked."""
        broker = workflow.get_external_workflow_handle(ids.broker_id(key.encode()))
        info = workflow.info()

        async def ask(number: int) -> None:
            wish = Acquire(key.encode(), f"c{number}", "crowd", 60.0, queue=True, waiter_ttl=3e8)
            call = BrokerCall([encode(wish)], number, info.workflow_id, info.run_id)
            await broker.signal(ids.APPLY, call)

        await asyncio.gather(*(ask(number) for number in range(many)))
        await workflow.wait_condition(lambda: len(self._answers) == many)
        heard = [reply for number in range(many) for reply in self._answers[number]]
        return [getattr(reply, "position", -1) for reply in heard]
