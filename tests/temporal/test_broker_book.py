"""A broker without a server: it answers as the ledger, also after a snapshot, and sends in order."""

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from temporalio import workflow

from dibs.core import ledger
from dibs.core.book import MemoryBook
from dibs.core.codec import encode
from dibs.core.names import fingerprint
from dibs.core.timing import MAX_CLAIM_TIMEOUT
from dibs.model import (
    Acquire,
    Command,
    Failed,
    Granted,
    Notification,
    Queued,
    Refused,
    Release,
    Renew,
    Reply,
)
from dibs.stores.temporal.wire import (
    AGES,
    TEXTS,
    BrokerAnswer,
    News,
    unpack_command,
)
from dibs.temporal.broker import outbox as broker_outbox
from dibs.temporal.broker.book import QUEUE_LIMIT, ROOM, BrokerBook, in_brief
from dibs.temporal.broker.outbox import A_SIGNAL, AT_A_TIME, Outbox
from dibs.temporal.broker.owners import inbox_of
from dibs.testing.clock import EPOCH as STAMP
from tests.core.plans import PLANS

KEY = b"lock:a"
RUN = "01a201dc-139d-7c25-967c-4abd85365a06"
NOW = 1_000.0
ONE = inbox_of("a:workflow:with:colons", RUN)
OTHER = inbox_of("another", "11a201dc-139d-7c25-967c-4abd85365a06")


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def restarted(book: BrokerBook) -> BrokerBook:
    """As a broker's next run begins."""
    return BrokerBook(KEY, through_json(book.dump()))


def steps(plan: Sequence[Any]) -> list[tuple[list[Command], float, int]]:
    """A plan's batches, all about one key, with the time of each."""
    now, stamp = NOW, STAMP
    found = []
    for step in plan:
        if isinstance(step, float):
            now, stamp = now + step, stamp + int(step * 1e6)
        elif isinstance(step, int):
            stamp += step
        else:
            found.append(([replace(command, key=KEY) for command in step], now, stamp))
    return found


def with_sorted_holders(reply: Reply) -> Reply:
    """Leases that end at the same time come in any order."""
    if isinstance(reply, Refused):
        return replace(reply, holders=tuple(sorted(reply.holders, key=lambda each: each.token)))
    return reply


@given(plan=PLANS)
@settings(max_examples=40, deadline=None)
def test_it_answers_as_the_ledger_also_after_each_snapshot(plan: list[Any]) -> None:
    book, kept, carried = MemoryBook(0, QUEUE_LIMIT), BrokerBook(KEY), BrokerBook(KEY)
    for commands, now, stamp in steps(plan):
        carried = restarted(carried)
        for command in commands:
            try:
                arrived = unpack_command(through_json(encode(command)), KEY)
            except ValueError:
                assert isinstance(ledger.apply(book, command, now, stamp)[0], Failed)
                continue
            reply, notifications = ledger.apply(book, arrived, now, stamp)
            assert kept.apply(arrived, now, stamp) == (reply, notifications)
            found, also = carried.apply(arrived, now, stamp)
            assert with_sorted_holders(found) == with_sorted_holders(reply)
            assert also == notifications
        assert carried.next_change(now) == kept.next_change(now)
        assert restarted(carried).dump() == carried.dump()


def wants(entry_id: str, inbox: str, waiter_ttl: float = AGES) -> Acquire:
    return Acquire(KEY, entry_id, "w", 60.0, queue=True, waiter_ttl=waiter_ttl, inbox=inbox)


def queued(*inboxes: str) -> BrokerBook:
    """Somebody holds, and these wait: `w0`, `w1`, …"""
    book = BrokerBook(KEY)
    book.apply(Acquire(KEY, "holder", "h", 30.0), NOW, STAMP)
    for number, inbox in enumerate(inboxes):
        assert isinstance(book.apply(wants(f"w{number}", inbox), NOW, STAMP)[0], Queued)
    return book


def granted(notifications: Sequence[Notification]) -> list[str]:
    return [notification.inbox for notification in notifications if notification.event == "granted"]


def release(book: BrokerBook, entry_id: str = "holder", at: float = NOW) -> list[Notification]:
    return book.apply(Release(KEY, entry_id), at, STAMP)[1]


def test_a_workflow_waits_without_heartbeats_and_a_plain_client_is_passed_over() -> None:
    assert granted(release(queued(ONE, ""), at=NOW + 29.0)) == [ONE]
    assert granted(release(queued("inbox", ONE), at=NOW + MAX_CLAIM_TIMEOUT + 1)) == [ONE]
    book = queued("")
    book.apply(wants("short", ONE, 20.0), NOW, STAMP)
    assert book.status(NOW + 19.0, STAMP).waiting == 2
    assert book.status(NOW + 21.0, STAMP).waiting == 1


def test_a_run_that_can_t_be_reached_loses_only_what_it_did_not_get() -> None:
    book = queued(ONE)
    notifications = release(book)
    assert book.ids_granted(notifications) == {ONE: ["w0"]}
    book.claimed(["w0"], notifications, NOW, STAMP)

    def holders_after(inbox: str, unheard: list[str]) -> int:
        book.gone({inbox: unheard}, NOW, STAMP)
        return len(book.status(NOW, STAMP).holders)

    assert holders_after(ONE, []) == 1, "it got the grant, and an earlier signal did not arrive"
    book.apply(Renew(KEY, "w0", 60.0, OTHER), NOW, STAMP)
    assert holders_after(ONE, ["w0"]) == 1, "its next run has it now"
    assert holders_after(OTHER, ["w0"]) == 0


def test_a_query_changes_nothing_and_names_no_id() -> None:
    book = queued(ONE)
    before = book.dump()
    assert '"holder"' not in json.dumps(encode(book.status(NOW, STAMP)))
    assert not book.status(NOW + 31.0, STAMP).waiting
    assert book.dump() == before


def test_commands_of_wrong_types_are_refused() -> None:
    for wrong in (
        {"ttl": "30"}, {"ttl": 10**400}, {"id": 5}, {"note": None}, {"queue": 1},
        {"id": "\ud800"}, {"units": "1"}, {"note": "x" * TEXTS},
    ):  # fmt: skip
        command = replace(Acquire(KEY, "a", "h", 30.0), **wrong)
        with pytest.raises(ValueError, match=rf"no |neither|Unicode|{TEXTS} bytes"):
            unpack_command(through_json(encode(command)), KEY)


@pytest.mark.parametrize("note", ["n" * 60, "\u20ac" * 300])
def test_a_long_queue_fits_into_one_message(note: str) -> None:
    book = BrokerBook(KEY)
    owner = "a-host-with-a-long-name.example/12345/" + "label" * 10

    def ask(number: int) -> Reply:
        wanted = Acquire(KEY, f"{number:022}", owner, 30.0, queue=True, note=note, inbox=ONE)
        return book.apply(wanted, NOW, STAMP)[0]

    replies = [ask(number) for number in range(QUEUE_LIMIT + 2)]
    assert isinstance(replies[-1], Refused)
    assert replies[-1].reason == "queue_full"
    assert ROOM / 2 < len(json.dumps(book.dump())) < ROOM
    told = in_brief(book.status(NOW, STAMP), {fingerprint(f"{9:022}")})  # to one that gives up
    assert len(json.dumps(encode(told))) < 12_000
    assert [each.lease for each in told.waiters].index(fingerprint(f"{9:022}")) == 8
    book = restarted(book)
    for number in range(1, 100):  # who leaves makes room
        release(book, f"{number:022}")
    for number in range(10_000, 12_000):  # and so do those that come and go
        assert isinstance(ask(number), Queued)
        release(book, f"{number:022}")
    assert isinstance(ask(QUEUE_LIMIT + 2), Queued)
    assert isinstance(ask(0), Granted)


def test_all_are_granted_though_much_ends_at_once() -> None:
    """As alarms ring, until nothing more is to be done at once."""
    book, many = BrokerBook(KEY), 200
    inboxes = [inbox_of(f"w{n}", RUN) for n in range(many)]
    for n in range(many):
        book.apply(Acquire(KEY, f"h{n}", "h", 60.0, 1, many), NOW, STAMP)
    for n in range(1_000):
        book.apply(Release(KEY, f"t{n}", tombstone=60.0), NOW, STAMP)
    for each in inboxes:
        ask = Acquire(KEY, each, "w", 60.0, 1, many, queue=True, waiter_ttl=AGES, inbox=each)
        book.apply(ask, NOW, STAMP)
    later = NOW + 61.0
    found = granted(book.settle(later, STAMP))
    while book.next_change(later) == later:
        found += granted(book.settle(later, STAMP))
    assert found == inboxes


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
    monkeypatch.setattr(broker_outbox, "_addressee", lambda inbox: found)
    monkeypatch.setattr(workflow, "logger", logging.getLogger("dibs"))
    return found


def make_outbox(ids_sent: list[str], state: Any = None) -> Outbox:
    return Outbox("", lambda inbox, ids, there: ids_sent.extend(ids), state)


async def all_sent(outbox: Outbox) -> None:
    while not outbox.is_empty:
        outbox.send()
        await asyncio.sleep(0)


async def test_much_goes_in_several_signals_and_in_order_also_by_the_next_run(
    addressee: Addressee,
) -> None:
    sent: list[str] = []
    before = make_outbox([])
    for inbox in ("", "a-plain-client", "wf:me:no-run"):
        before.put(inbox, ["x"])
    assert before.is_empty, "these are no runs"
    for number in range(500):
        before.put(ONE, BrokerAnswer([[LONG]], number), [f"a{number}"])
        before.put(ONE, [number, LONG])
    before.put(ONE, [500, LONG * 100])
    outbox = make_outbox(sent, through_json(before.dump()))
    for number in range(2 * AT_A_TIME):
        outbox.put(inbox_of(f"w{number}", RUN), ["to another"])
    outbox.send()
    await asyncio.sleep(0)
    assert len(addressee.news) == AT_A_TIME, "as many as may be under way"
    addressee.open.set()
    await all_sent(outbox)
    addressee.news = [each for each in addressee.news if ["to another"] not in each.notifications]
    assert len(addressee.news[-1].notifications[-1][1]) > A_SIGNAL, "one goes however large it is"
    sizes = [len(json.dumps(asdict(each))) for each in addressee.news[:-1]]
    assert max(sizes) < A_SIGNAL + 2_500
    assert [each.number for news in addressee.news for each in news.answers] == [*range(500)]
    assert [each[0] for news in addressee.news for each in news.notifications] == [*range(501)]
    assert sent == [f"a{number}" for number in range(500)]
