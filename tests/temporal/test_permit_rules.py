"""Permits in workflow code without a server: what is refused, and how it reads a broker's replies."""

import asyncio
import random
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from dibs.core.names import key_of
from dibs.core.proof import proof_of
from dibs.core.timing import trusted
from dibs.errors import InvalidName
from dibs.model import Gone, Granted, Lost, Notification, Queued, Refused, Renewed
from dibs.temporal import (
    DEFAULT_LEASE,
    MAX_BACKOFF,
    TEMPORAL_TASK_QUEUE,
    Lock,
    PermitSlotInput,
    Semaphore,
    permit_workflow_id,
)
from dibs.temporal.errors import Misused
from dibs.temporal.fair.lease import BrokeredLease, pause
from dibs.temporal.options import AcquireOptions
from dibs.temporal.permit import FORMAT, Handoff, may_run_on
from dibs.temporal.slots.acquire import FIRST_ROUND, NEXT_ROUNDS, PAUSE, PROBE, Prober
from dibs.temporal.slots.run_state import MAX_EARLY_NEWS, RunState
from dibs.temporal.slots.workflow import ARMED, PermitNews

pytestmark = pytest.mark.once

checked = AcquireOptions.of


def semaphore(**options: Any) -> Semaphore:
    return Semaphore(**{"resource": "x", "capacity": 2, **options})


def refusal(what: Callable[[], object]) -> str:
    """Every refusal fails a workflow, and is never tried again."""
    with pytest.raises(ApplicationError) as caught:
        what()
    assert isinstance(caught.value, Misused)
    assert caught.value.non_retryable
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fair": True, "armed": False}, "armed=False is for slot mode"),
        ({"fair": 1}, "fair is 1: give True or False"),
        ({"armed": "yes"}, "armed is 'yes'"),
        ({"armed": False, "quarantine": 3}, "quarantine= needs armed=True"),
        ({"on_holder_close": "slow"}, "on_holder_close"),
        ({"on_holder_close": "fast", "quarantine": 3}, "quarantine"),
        ({"task_queue": ""}, "task_queue is ''"),
        ({"task_queue": " "}, "task_queue is ' '"),
        ({"capacity": 0}, "capacity is 0"),
        ({"capacity": 1_000_000}, "at most 1000 slots.*use fair=True"),
        ({"resource": "a\nb"}, "control characters"),
        ({"resource": "x" * 300}, "255 bytes"),
        ({"resource": "x" * 600, "fair": True}, "512 bytes"),
        ({"ttl": 5}, "no option ttl= here; .* go to acquire"),
    ],
)
def test_what_makes_no_semaphore(options: dict[str, Any], words: str) -> None:
    assert re.search(words, refusal(lambda: semaphore(**options)))


def test_an_empty_name_is_refused_as_everywhere() -> None:
    with pytest.raises(InvalidName) as caught:
        key_of("semaphore", "")
    assert refusal(lambda: semaphore(resource="")) == str(caught.value)


def test_a_fair_semaphore_takes_what_no_permit_could() -> None:
    """Its workflow ID has a hash, and is escaped; it numbers more slots than slot mode."""
    for options in ({"resource": "x" * 512}, {"resource": "a\nb"}, {"capacity": 5_000}):
        assert repr(semaphore(fair=True, **options)).endswith(", fair=True)")
    assert repr(semaphore()) == "Semaphore('x', capacity=2)"
    assert (repr(Lock("x", fair=True)), repr(Lock("x"))) == ("Lock('x', fair=True)", "Lock('x')")


@pytest.mark.parametrize(
    ("fair", "asked", "words"),
    [
        (False, {"units": 2}, "units= and priority= need fair=True"),
        (False, {"priority": 1}, "need fair=True"),
        (True, {"backoff": 2}, "backoff= is for slot mode"),
        (True, {"max_backoff": 2}, "max_backoff= is for slot mode"),
        (False, {"backoff": 10, "max_backoff": 2}, "max_backoff is 2 s and backoff 10 s"),
        (False, {"backoff": 0}, "backoff"),
        (False, {"max_backoff": 0}, "max_backoff is 0 s"),
        (False, {"note": 7}, "note is 7: give a text"),
        (False, {"auto_renew": "no"}, "auto_renew is 'no'"),
        (False, {"ttl": "soon"}, "ttl is 'soon'"),
        (False, {"ttl": 5, "lease": 5}, "lease"),
        (False, {"wait": 5, "timeout": 5}, "timeout"),
        (False, {"ttl": 1, "max_hold": "1d"}, "renewals need a ttl of 3 s at least"),
    ],
)
def test_what_acquire_refuses_before_it_asks(fair: bool, asked: dict[str, Any], words: str) -> None:
    assert words in refusal(lambda: semaphore(fair=fair).acquire(**asked))


@pytest.mark.parametrize(
    ("fair", "asked", "words"),
    [
        (False, {"wait": 3}, "takes no wait=: it never waits"),
        (False, {"timeout": 3}, "takes no timeout="),
        (False, {"colour": 3}, "takes no colour="),
        (False, {"units": 2}, "need fair=True"),
        (True, {"units": 2, "priority": 5, "max_hold": 60}, "is for workflow code"),
    ],
)
def test_what_try_acquire_refuses(fair: bool, asked: dict[str, Any], words: str) -> None:
    trying = semaphore(fair=fair).try_acquire(**asked)
    assert words in refusal(lambda: trying.send(None))


def test_what_reattach_refuses() -> None:
    refusal(lambda: semaphore().reattach({"what": 1}))


@pytest.mark.parametrize(
    ("asked", "ttl", "max_hold"),
    [
        ({}, 600.0, 86_400.0),
        ({"max_hold": "5m"}, 300.0, 300.0),
        ({"ttl": "1m", "max_hold": "5m"}, 60.0, 300.0),
        ({"ttl": "15s", "max_hold": "4s"}, 4.0, 4.0),  # no lease is longer than it is held
        ({"ttl": "1h"}, 3600.0, 86_400.0),
        ({"ttl": "1m"}, 60.0, 500 * 60.0),  # for so many renewals
        ({"ttl": "2d"}, 2 * 86_400.0, 2 * 86_400.0),  # never less than one lease
    ],
)
def test_how_long_it_is_held(asked: dict[str, Any], ttl: float, max_hold: float) -> None:
    assert (checked(**asked).ttl, checked(**asked).max_hold) == (ttl, max_hold)


def test_a_short_longest_pause_shortens_the_first() -> None:
    assert (checked(max_backoff=2).backoff, checked(max_backoff=2).max_backoff) == (2.0, 2.0)


class NextRun(workflow.ContinueAsNewError):
    """Only subclasses can be made."""


@pytest.mark.parametrize(
    ("error", "may"),
    [
        (None, False),
        (TimeoutError(), True),
        (ExceptionGroup("", [ApplicationError("sibling")]), True),
        (asyncio.CancelledError(), True),
        (Misused("no name"), False),
        (NextRun(), False),
    ],
)
def test_a_body_that_failed_may_have_left_work_behind(
    error: BaseException | None, may: bool
) -> None:
    """Then its quarantine begins."""
    assert may_run_on(error) is may


# -- a lease in fair mode --------------------------------------------------------------------------

KEY = b"lock:x"


def leased(ttl: float = 10.0, at: float = 100.0) -> BrokeredLease:
    lease = BrokeredLease("id", ttl)
    lease.take_reply(Granted(7, (1,), ttl), at)
    return lease


def pushed(at: float, window: float) -> Notification:
    proof = proof_of(KEY, "id", 7, (1,), at, window)
    return Notification(KEY, "", "wf:a:b", "granted", 7, (1,), at, window, proof=proof)


def test_an_answer_counts_from_when_it_was_asked_for() -> None:
    assert BrokeredLease("id", 10.0).lost(0.0)
    lease = leased()
    assert (lease.granted, lease.token, lease.slots) == (True, 7, (1,))
    assert lease.deadline == 100.0 + trusted(10.0)
    assert not lease.lost(108.0)
    assert lease.lost(109.0)


def test_a_push_counts_from_its_grant_by_our_own_clock_and_never_from_later_than_it_came() -> None:
    lease = BrokeredLease("id", 10.0)
    lease.take_reply(Queued(0, 1.0, now=5000.0), 100.0)  # the broker's clock is far ahead
    lease.take_notification(pushed(5100.0, 10.0), 203.0)
    assert lease.deadline == pytest.approx(199.0 + trusted(10.0))
    lease = BrokeredLease("id", 10.0)
    lease.take_notification(pushed(5100.0, 10.0), 203.0)
    assert lease.deadline == 203.0 + trusted(10.0)


@pytest.mark.parametrize(
    "change", [{"token": 8}, {"key": b"lock:y"}, {"token": 10**400}, {"token": "7"}, {"proof": 1}]
)
def test_a_grant_without_proof_is_not_believed(change: dict[str, Any]) -> None:
    lease = BrokeredLease("id", 10.0)
    lease.take_notification(replace(pushed(5100.0, 10.0), **change), 203.0)
    assert not lease.granted


def test_a_grant_that_has_to_be_claimed_is_claimed_soon_and_a_renewal_never_shortens() -> None:
    lease = BrokeredLease("id", 600.0)
    lease.take_notification(pushed(200.0, 5.0), 200.0)
    assert lease.deadline == 200.0 + trusted(5.0)
    assert lease.renew_at < 202.0
    lease.take_reply(Renewed(600.0), 201.0)
    deadline = 201.0 + trusted(600.0)
    assert (lease.deadline, lease.renew_at) == (deadline, 201.0 + 300.0)
    lease.take_reply(Renewed(1.0), 210.0)
    assert lease.deadline == deadline
    assert pause(600.0) == 300.0
    assert pause(3.0) == 1.0, "more of a short lease is left"


def test_the_first_reason_of_a_loss_counts() -> None:
    lease = leased()
    lease.take_notification(Notification(KEY, "", "", "revoked", detail="by hand"), 101.0)
    lease.take_reply(Lost("expired"), 102.0)
    assert lease.ending is not None
    assert (lease.ending.reason, lease.ending.detail) == ("revoked", "by hand")
    assert lease.lost(101.0)


@pytest.mark.parametrize("reply", [Queued(0, 1.0, now=0.0), Granted(8, (), 10.0)])
def test_a_lease_that_its_broker_no_longer_holds_is_lost_at_once(reply: Queued | Granted) -> None:
    """Its broker was ended, and a reminder that was under way has queued the id at the next one."""
    lease = leased()
    deadline = lease.deadline
    lease.take_reply(Granted(7, (1,), 9.9), 100.0)  # the same grant confirms it
    assert lease.ending is None
    lease.take_reply(reply, 101.0)
    assert lease.ending is not None
    assert lease.ending.reason == "expired"
    assert lease.lost(101.0)
    assert (lease.token, lease.deadline) == (7, deadline)


def test_what_ends_the_wait() -> None:
    for reply in (Refused("held"), Gone()):
        lease = BrokeredLease("id", 10.0)
        lease.take_reply(reply, 100.0)
        assert lease.refusal == reply
    lease = BrokeredLease("id", 10.0)
    lease.take_notification(Notification(KEY, "", "", "head"), 100.0)
    assert lease.refusal is None
    lease.take_notification(Notification(KEY, "", "", "refused"), 100.0)
    assert lease.refusal == Refused("too_large")


# -- slot mode -----------------------------------------------------------------------------------


def test_the_constants_are_what_the_guide_calls_so() -> None:
    assert permit_workflow_id("gpu-pool", "2") == "permit:gpu-pool:2"
    assert PermitSlotInput(resource="gpu-pool", slot="2", lease_seconds=1.0).slot == "2"
    assert (timedelta(minutes=10), timedelta(minutes=1)) == (DEFAULT_LEASE, MAX_BACKOFF)
    assert TEMPORAL_TASK_QUEUE == "distributed-lock-tq"


def test_a_handoff_of_a_later_release_is_refused_with_what_to_do() -> None:
    later = {"resource": "x", "slots": ["0"], "run_id": "r", "token": 1, "ttl": 9.0}
    later |= {"acquired_at": 1.0, "until": 10.0, "renews": True}
    assert Handoff.of({**later, "colour": "blue"}).ttl == 9.0
    with pytest.raises(Misused, match="update that first"):
        Handoff.of({**later, "format": FORMAT + 1})


def test_news_of_unknown_permits_are_kept_within_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A permit can report before its start is known here. Others report late, when they are over."""
    monkeypatch.setattr("temporalio.workflow.set_signal_handler", lambda *about: None)
    state = RunState()
    heard: list[PermitNews] = []
    news = [PermitNews(f"run {number}", ARMED) for number in range(MAX_EARLY_NEWS + 5)]
    for each in news:
        state._receive(each)
    state.listen("run 1", heard.append)  # among the oldest of too many
    state.listen(news[-1].permit, heard.append)
    assert heard == [news[-1]]
    state._receive(news[-1])
    assert heard == [news[-1], news[-1]], "at once, now that it is known"


# -- the cost of waiting: events are bounded, however long it takes --------------------------------


def prober(slots: int, *, seed: int = 7, backoff: float = 5.0, longest: float = 60.0) -> Prober:
    names = [str(number) for number in range(slots)]
    return Prober(names, random.Random(seed), 0.0, backoff=backoff, longest=longest)


def events_of_a_wait(
    prober: Prober, seconds: float, *, long: bool = False
) -> tuple[int, list[float]]:
    """The number of events of a waiter that never finds a free slot; and its pauses."""
    now, events = 0.0, 0
    pauses: list[float] = []
    while now < seconds:
        for _ in prober.round(now):
            prober.probed()
            events += PROBE
        pauses.append(prober.pause(now, history_is_long=long))
        now += pauses[-1]
        events += PAUSE
    return events, pauses


@pytest.mark.parametrize("capacity", [1, 4, 100])
@pytest.mark.parametrize(("backoff", "longest"), [(5.0, 60.0), (5.0, 5.0), (0.05, 0.05)])
def test_an_hour_takes_less_than_1000_events(capacity: int, backoff: float, longest: float) -> None:
    for seed in range(5):
        probing = prober(capacity, seed=seed, backoff=backoff, longest=longest)
        events, _ = events_of_a_wait(probing, 3600.0)
        assert events < 1000 - 50  # the rest is for what comes after the wait


def test_pauses_grow_and_are_jittered_and_a_long_history_grows_slowly() -> None:
    events, _ = events_of_a_wait(prober(4), 86_400.0, long=True)
    assert events < 7500
    _, pauses = events_of_a_wait(prober(1), 600.0)
    for found, base in zip(pauses, [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0], strict=False):
        assert 0.5 * base <= found <= base
    assert len(set(pauses)) == len(pauses)


def test_each_slot_is_tried_before_any_is_tried_again_in_bounded_rounds() -> None:
    six = prober(6)
    assert sorted(six.round(0.0)) == list("012345")
    later = [slot for _ in range(3) for slot in six.round(0.0)]
    assert sorted(later[:6]) == list("012345")
    many = prober(500)
    assert (len(many.round(0.0)), len(many.round(0.0))) == (FIRST_ROUND, NEXT_ROUNDS)
    three = prober(3)
    assert three.round(0.0, {"0", "1"}) == ["2"], "it has the others itself"
    assert three.round(0.0, {"0", "1", "2"}) == []


def test_the_same_seed_gives_the_same_probes() -> None:
    def probes(each: Prober) -> list[object]:
        steps: list[Callable[[float], object]] = [each.round, each.pause]
        return [step(0.0) for _ in range(20) for step in steps]

    assert probes(prober(9, seed=3)) == probes(prober(9, seed=3))
