"""A broker never says more at once than a message holds, without a server."""

import asyncio
import json
import logging
from dataclasses import asdict
from typing import Any

import pytest
from temporalio import workflow

from dibs.core.codec import decode_reply, encode
from dibs.core.names import fingerprint
from dibs.model import Acquire, Failed, Inspect, Refused, Release, Status, Waiter
from dibs.stores.temporal.broker import post as broker_post
from dibs.stores.temporal.broker.clerk import Clerk
from dibs.stores.temporal.broker.clock import BrokerClock
from dibs.stores.temporal.broker.desk import Desk
from dibs.stores.temporal.broker.parts import A_PART, AN_ANSWER, Bundle, in_brief, size_of
from dibs.stores.temporal.broker.post import AT_ONCE, Post, Telling
from dibs.stores.temporal.protocol.owners import inbox_of
from dibs.stores.temporal.protocol.wire import BrokerAnswer, BrokerCall, News

KEY = b"lock:a"
RUN = "01a201dc-139d-7c25-967c-4abd85365a06"


class Office:
    """A clerk, and what he works with, at a time that stands still."""

    def __init__(self) -> None:
        self.desk = Desk(KEY)
        clock = BrokerClock(0.0, (1_000.0, 10**15))
        self.telling = Telling("", self.desk, clock, lambda: None, None)
        self.clerk = Clerk(self.desk, clock, self.telling, by_hand=True)

    def ask(self, workflow_id: str, run_id: str, **more: Any) -> list[Any]:
        command = encode(Acquire(KEY, "a", "me", 30.0))
        call = BrokerCall([command], 1, workflow_id, run_id, at=(1_000.0, 10**15), **more)
        inbox = inbox_of(workflow_id, run_id) if workflow_id else ""
        return self.clerk.answer(call, inbox, []).replies


def test_what_a_workflow_holds_may_end_with_its_run() -> None:
    office = Office()
    (reply,) = office.ask("me", RUN, fast=True)
    assert reply[0] == "granted"
    assert office.desk.fast_owners() == [("me", RUN)]


def test_fast_without_an_owner_is_nobody_to_be_looked_after() -> None:
    """A plain client's, and one whose run can't be one."""
    for workflow_id, run_id in (("", ""), ("me", "no-run")):
        office = Office()
        (reply,) = office.ask(workflow_id, run_id, fast=True)
        assert reply[0] == "granted"
        assert office.desk.fast_owners() == []
        assert office.telling.post.empty


LONG = "n" * 1_000


class Addressee:
    """Keeps the signals that it gets, until they are let in."""

    def __init__(self) -> None:
        self.news: list[News] = []
        self.open = asyncio.Event()

    async def signal(self, name: str, news: News) -> None:
        self.news.append(news)
        await self.open.wait()


@pytest.fixture
def addressee(monkeypatch: pytest.MonkeyPatch) -> Addressee:
    found = Addressee()
    monkeypatch.setattr(broker_post, "_addressee", lambda inbox: found)
    monkeypatch.setattr(workflow, "logger", logging.getLogger("dibs"))
    return found


async def all_sent(post: Post) -> None:
    while not post.empty:
        post.send()
        await asyncio.sleep(0)


async def test_a_letter_too_large_goes_in_parts_and_in_order(addressee: Addressee) -> None:
    granted: list[list[str]] = []
    post = Post("", lambda inbox, bundle, there: granted.append(bundle.granted))
    bundle = post.to(inbox_of("w", RUN))
    for number in range(1_000):
        bundle.notifications.append([number, LONG])
        bundle.answers.append(BrokerAnswer([[LONG]], number))
    bundle.granted.append("a")
    addressee.open.set()
    await all_sent(post)
    assert max(size_of(asdict(each)) for each in addressee.news) < A_PART + 1_000
    assert [each.number for news in addressee.news for each in news.answers] == [*range(1_000)]
    assert [each[0] for news in addressee.news for each in news.notifications] == [*range(1_000)]
    last = max(number for number, each in enumerate(addressee.news) if each.answers)
    assert not any(each.notifications for each in addressee.news[:last])
    assert granted == [["a"]] + [[]] * (len(addressee.news) - 1)


async def test_no_task_sends_more_than_one_message_holds(addressee: Addressee) -> None:
    post = Post("", lambda inbox, bundle, there: None)
    for number in range(20):
        post.to(inbox_of(f"w{number}", RUN)).answers.append(BrokerAnswer([[LONG * 100]]))
    post.send()
    await asyncio.sleep(0)
    assert 1 < len(addressee.news) <= AT_ONCE / 100_000
    addressee.open.set()
    await all_sent(post)
    assert len(addressee.news) == 20


def test_one_piece_goes_however_large_it_is() -> None:
    huge = Bundle([[LONG], []], [BrokerAnswer([[LONG]])], ["a"])
    parts: list[Bundle] = []
    rest: Bundle | None = huge
    while rest is not None:
        part, rest = rest.split(500)
        parts.append(part)
    assert [(len(each.answers), len(each.notifications)) for each in parts] == [
        (1, 0),
        (0, 1),
        (0, 1),
    ]


def answer_to(office: Office, *commands: Any, inbox: str = "") -> BrokerAnswer:
    call = BrokerCall([encode(each) for each in commands], at=(1_000.0, 10**15))
    return office.clerk.answer(call, inbox, [])


def test_what_is_asked_at_once_is_answered_in_less_than_a_message() -> None:
    """Who is in the way is told to those who asked first."""
    office = Office()
    answer_to(office, *(Acquire(KEY, f"h{n}", "me", 30.0, capacity=8, note=LONG) for n in range(8)))
    tries = [Acquire(KEY, f"t{n}", "me", 30.0, capacity=8) for n in range(500)]
    looks = [Inspect(KEY)] * 500
    for commands, later in ((tries, Refused), (looks, Failed)):
        packed = answer_to(office, *commands).replies
        assert len(json.dumps(packed)) < AN_ANSWER + 500 * 200
        first, last = decode_reply(packed[0], KEY), decode_reply(packed[-1], KEY)
        assert isinstance(first, Refused | Status)
        assert len(first.holders) == 8
        assert type(last) is later
        assert not getattr(last, "holders", ())


def test_a_workflow_that_gives_up_is_told_what_it_needs_to_know() -> None:
    office = Office()
    answer_to(
        office, *(Acquire(KEY, f"h{n}", "me", 99.0 - n, capacity=20, note=LONG) for n in range(20))
    )
    waits = [
        Acquire(KEY, f"w{n}", "me", 30.0, capacity=20, queue=True, note=LONG) for n in range(9)
    ]
    answer_to(office, *waits)
    inbox = inbox_of("me", RUN)
    packed, _ = answer_to(office, Inspect(KEY), Release(KEY, "w5"), inbox=inbox).replies
    assert size_of(packed) < 12_000
    status = decode_reply(packed, KEY)
    assert isinstance(status, Status)
    assert len(status.holders) == 9  # the last is the one that ends first
    assert min(each.expires_in for each in status.holders) == 80.0
    assert [each.lease for each in status.waiters].index(fingerprint("w5")) == 5
    assert status.waiting == 9


def test_one_that_does_not_wait_is_told_of_no_place() -> None:
    status = Status(KEY, 1, (), (Waiter("x", "me", 1, 0, 0.0),), 1)
    assert in_brief(status, {"y"}).waiters == ()
