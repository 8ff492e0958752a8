"""What a broker does with a command, without a server: as the ledger, and the same after a snapshot."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from dibs.core import ledger
from dibs.core.book import MemoryBook
from dibs.core.codec import encode
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
from dibs.stores.temporal.broker.desk import QUEUE_LIMIT, Desk
from dibs.stores.temporal.protocol.owners import inbox_of, owner_of
from dibs.stores.temporal.protocol.wire import AGES, unpack_command
from tests.stores.redis.ledger_commands import PLANS
from tests.stores.redis.ledger_scripted import STAMP

KEY = b"lock:a"
RUN = "01a201dc-139d-7c25-967c-4abd85365a06"
RUN_2 = "11a201dc-139d-7c25-967c-4abd85365a06"
NOW = 1_000.0
THERE = inbox_of("a:workflow:with:colons", RUN)
HERE = inbox_of("another", RUN_2)


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


def through_json(command: Command) -> Command:
    return unpack_command(json.loads(json.dumps(encode(command))), KEY)


def anew(desk: Desk) -> Desk:
    """As a broker's next run begins."""
    return Desk(KEY, json.loads(json.dumps(desk.dump())))


def sorted_holders(reply: Reply) -> Reply:
    """What ends at once ends in any order."""
    if isinstance(reply, Refused):
        return replace(reply, holders=tuple(sorted(reply.holders, key=lambda each: each.token)))
    return reply


@given(plan=PLANS)
@settings(max_examples=60, deadline=None)
def test_it_answers_as_the_ledger(plan: list[Any]) -> None:
    desk, book = Desk(KEY), MemoryBook(0, QUEUE_LIMIT)
    for commands, now, stamp in steps(plan):
        for command in commands:
            try:
                carried = through_json(command)
            except ValueError:
                assert isinstance(ledger.apply(book, command, now, stamp)[0], Failed)
            else:
                wanted = ledger.apply(book, carried, now, stamp)
                assert desk.apply(carried, now, stamp) == wanted


@given(plan=PLANS)
@settings(max_examples=60, deadline=None)
def test_a_snapshot_changes_nothing(plan: list[Any]) -> None:
    kept, carried = Desk(KEY), Desk(KEY)
    for commands, now, stamp in steps(plan):
        carried = anew(carried)
        for command in commands:
            wanted, told = kept.apply(command, now, stamp)
            found, told_too = carried.apply(command, now, stamp)
            assert sorted_holders(found) == sorted_holders(wanted)
            assert told_too == told
        assert carried.next_change(now) == kept.next_change(now)
        assert anew(carried).dump() == carried.dump()


def queue(desk: Desk, *inboxes: str, now: float = NOW) -> list[Reply]:
    """Somebody holds, and these wait: `w0`, `w1`, …"""
    desk.apply(Acquire(KEY, "holder", "h", 30.0), now, STAMP)
    return [desk.apply(waits(f"w{n}", inbox), now, STAMP)[0] for n, inbox in enumerate(inboxes)]


def waits(entry_id: str, inbox: str, waiter_ttl: float = AGES) -> Acquire:
    """As somebody asks who has such waiter_ttl."""
    return Acquire(KEY, entry_id, "w", 60.0, queue=True, waiter_ttl=waiter_ttl, inbox=inbox)


def granted(notifications: Sequence[Notification]) -> list[str]:
    return [notification.inbox for notification in notifications if notification.event == "granted"]


def test_a_workflow_that_waits_is_believed_in_without_signs_of_life() -> None:
    desk = Desk(KEY)
    assert all(isinstance(reply, Queued) for reply in queue(desk, THERE, ""))
    later = NOW + 29.0
    _, told = desk.apply(Release(KEY, "holder"), later, STAMP)
    assert granted(told) == [THERE]


def test_a_plain_client_that_is_silent_is_passed_over() -> None:
    desk = Desk(KEY)
    queue(desk, "mailbox", THERE)
    _, told = desk.apply(Release(KEY, "holder"), NOW + MAX_CLAIM_TIMEOUT + 1, STAMP)
    assert granted(told) == [THERE]


def test_what_is_pushed_to_a_workflow_is_claimed_for_as_long_as_was_asked_for() -> None:
    desk = Desk(KEY)
    queue(desk, THERE)
    _, told = desk.apply(Release(KEY, "holder"), NOW, STAMP)
    assert desk.ids_granted(told) == {THERE: ["w0"]}
    [notification] = desk.claimed(["w0"], told, NOW, STAMP)
    assert (notification.event, notification.claim_timeout) == ("granted", 60.0)
    (holder,) = anew(desk).status(NOW + 1, STAMP).holders
    assert (holder.state, holder.expires_in) == ("held", 59.0)


def test_who_has_gone_leaves_the_queue_and_the_next_is_told() -> None:
    desk = Desk(KEY)
    queue(desk, THERE, THERE, HERE)
    _, told = desk.apply(Release(KEY, "holder"), NOW, STAMP)
    told = desk.gone({THERE: desk.ids_granted(told)[THERE]}, NOW, STAMP)
    assert granted(told)[-1] == HERE
    assert not desk.status(NOW, STAMP).waiting


def test_what_was_delivered_once_is_not_taken_because_a_later_push_fails() -> None:
    desk = Desk(KEY)
    queue(desk, THERE)
    _, told = desk.apply(Release(KEY, "holder"), NOW, STAMP)
    desk.claimed(desk.ids_granted(told)[THERE], told, NOW, STAMP)
    desk.gone({THERE: []}, NOW, STAMP)
    assert len(desk.status(NOW, STAMP).holders) == 1


def test_what_was_renewed_from_elsewhere_is_not_taken_because_a_push_fails() -> None:
    desk = Desk(KEY)
    queue(desk, THERE)
    _, told = desk.apply(Release(KEY, "holder"), NOW, STAMP)
    desk.claimed(desk.ids_granted(told)[THERE], told, NOW, STAMP)
    desk.apply(Renew(KEY, "w0", 60.0, HERE), NOW, STAMP)
    desk.gone({THERE: ["w0"]}, NOW, STAMP)
    assert len(desk.status(NOW, STAMP).holders) == 1
    desk.gone({HERE: ["w0"]}, NOW, STAMP)
    assert not desk.status(NOW, STAMP).holders


def test_a_workflow_waits_no_longer_than_it_says() -> None:
    desk = Desk(KEY)
    queue(desk, "")
    desk.apply(waits("short", THERE, 20.0), NOW, STAMP)
    assert desk.status(NOW + 19.0, STAMP).waiting == 2
    assert desk.status(NOW + 21.0, STAMP).waiting == 1


def test_the_first_in_line_is_looked_after_if_it_is_a_workflow() -> None:
    desk = Desk(KEY)
    assert desk.head_owner() is None
    queue(desk, "mailbox", THERE)
    assert desk.head_owner() is None
    desk.apply(Release(KEY, "w0"), NOW, STAMP)
    assert desk.head_owner() == owner_of(THERE)
    desk.gone({THERE: []}, NOW, STAMP)
    assert not desk.book.waiting


def test_a_closed_run_that_asked_for_it_ends_its_lease() -> None:
    desk = Desk(KEY)
    command = Acquire(KEY, "a", "h", 600.0)
    desk.apply(command, NOW, STAMP)
    desk.mark_fast(command, ("another", RUN_2))
    desk = anew(desk)
    queue(desk, THERE)
    assert desk.fast_owners() == [("another", RUN_2)]
    assert granted(desk.closed([("another", RUN_2)], NOW, STAMP)) == [THERE]
    assert not desk.fast_owners()


def test_time_alone_changes_something_only_for_those_who_wait() -> None:
    desk = Desk(KEY)
    desk.apply(Acquire(KEY, "holder", "h", 30.0), NOW, STAMP)
    assert desk.next_change(NOW) is None
    queue(desk, THERE)
    assert desk.next_change(NOW) == NOW + 30.0
    assert granted(desk.settle(NOW + 30.0, STAMP)) == [THERE]


def test_it_looks_again_when_a_plain_client_at_the_head_falls_silent() -> None:
    desk = Desk(KEY)
    queue(desk, "mailbox", THERE)
    assert desk.next_change(NOW) == NOW + MAX_CLAIM_TIMEOUT
    assert desk.next_change(NOW + MAX_CLAIM_TIMEOUT + 1) == NOW + 30.0


def test_a_query_changes_nothing() -> None:
    desk = Desk(KEY)
    queue(desk, THERE)
    before = desk.dump()
    assert not desk.status(NOW + 31.0, STAMP).waiting
    assert desk.dump() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl": "30"},
        {"ttl": 10**400},
        {"id": 5},
        {"note": None},
        {"queue": 1},
        {"capacity": True},
        {"id": "\ud800"},
        {"units": "1"},
    ],
)
def test_a_command_of_wrong_types_is_refused(wrong: dict[str, Any]) -> None:
    command = replace(Acquire(KEY, "a", "h", 30.0), **wrong)
    with pytest.raises(ValueError, match=r"no |neither|Unicode"):
        unpack_command(json.loads(json.dumps(encode(command))), KEY)


def test_an_inbox_of_a_workflow_names_its_run() -> None:
    assert owner_of(THERE) == ("a:workflow:with:colons", RUN)


@pytest.mark.parametrize(
    "inbox",
    [
        "Zm9v",
        "",
        "wf:",
        "wf:x",
        "wf:x:y",
        f"wf::{RUN}",
        f"wf:\ud800:{RUN}",
        f"wf:{'x' * 999}:{RUN}",
    ],
)
def test_what_can_not_be_signalled_is_no_workflow(inbox: str) -> None:
    assert owner_of(inbox) is None


def test_a_long_queue_fits_into_one_message() -> None:
    desk = Desk(KEY)
    owner = "a-host-with-a-long-name.example/12345/" + "label" * 10
    for number in range(QUEUE_LIMIT + 1):
        ask = Acquire(KEY, f"{number:022}", owner, 30.0, queue=True, note="n" * 60, inbox=THERE)
        desk.apply(ask, NOW, STAMP)
    last = desk.apply(Acquire(KEY, "late", owner, 30.0, queue=True), NOW, STAMP)[0]
    assert isinstance(last, Refused)
    assert last.reason == "queue_full"
    assert len(json.dumps(desk.dump())) < 1_500_000
    assert isinstance(
        anew(desk).apply(Acquire(KEY, f"{0:022}", owner, 30.0), NOW, STAMP)[0], Granted
    )


def test_long_notes_fit_into_one_message_too() -> None:
    desk = Desk(KEY)

    def ask(number: int) -> Reply:
        wanted = Acquire(KEY, f"{number:022}", "o", 30.0, queue=True, note="\u20ac" * 1000)
        return desk.apply(wanted, NOW, STAMP)[0]

    replies = [ask(number) for number in range(QUEUE_LIMIT)]
    assert isinstance(replies[-1], Refused)
    assert replies[-1].reason == "queue_full"
    assert 900_000 < len(json.dumps(desk.dump())) < 1_100_000
    for number in range(1, 100):  # who leaves makes room
        desk.apply(Release(KEY, f"{number:022}"), NOW, STAMP)
    assert isinstance(ask(QUEUE_LIMIT), Queued)
    assert isinstance(ask(1), Queued)


def test_no_answer_names_an_id() -> None:
    desk = Desk(KEY)
    queue(desk, THERE)
    status = desk.status(NOW, STAMP)
    assert '"holder"' not in json.dumps(encode(status))
