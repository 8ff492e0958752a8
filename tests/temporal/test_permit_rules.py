"""Permits in workflow code without a server: what is refused, how long they last, what waiting costs."""

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from dibs.core.proof import proof_of
from dibs.core.timing import trusted
from dibs.model import Granted, Notification, Queued, Renewed
from dibs.temporal import Semaphore
from dibs.temporal.errors import Misused
from dibs.temporal.fair.lease import REPLACED, BrokeredLease, pause
from dibs.temporal.options import AcquireOptions
from dibs.temporal.permit import FORMAT, may_run_on
from dibs.temporal.slots.acquire import FIRST_ROUND, NEXT_ROUNDS, PAUSE, PROBE, Prober

pytestmark = pytest.mark.once


def semaphore(**options: Any) -> Semaphore:
    return Semaphore(**{"resource": "x", "capacity": 2, **options})


def acquire(fair: bool = False, **asked: Any) -> Any:
    return semaphore(fair=fair).acquire(**asked)


def try_acquire(fair: bool = False, **asked: Any) -> Any:
    return semaphore(fair=fair).try_acquire(**asked).send(None)


LATER = {
    "resource": "x", "slots": ["0"], "run_id": "r", "token": 1, "ttl": 9.0,
    "acquired_at": 1.0, "until": 10.0, "renews": True, "format": FORMAT + 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("use", "options", "words"),
    [
        (semaphore, {"fair": True, "armed": False}, "armed=False is for slot mode"),
        (semaphore, {"armed": False, "quarantine": 3}, "quarantine= needs armed=True"),
        (semaphore, {"on_holder_close": "fast", "quarantine": 3}, "quarantine"),
        (semaphore, {"capacity": 1_000_000}, "at most 1000 slots.*use fair=True"),
        (semaphore, {"resource": "a\nb"}, "control characters"),
        (semaphore, {"resource": "x" * 300}, "255 bytes"),
        (semaphore, {"ttl": 5}, "no option ttl= here; .* go to acquire"),
        (semaphore().reattach, {"handoff": LATER}, "update that first"),
        (acquire, {"units": 2}, "units= and priority= need fair=True"),
        (acquire, {"fair": True, "backoff": 2}, "backoff= is for slot mode"),
        (acquire, {"backoff": 10, "max_backoff": 2}, "max_backoff is 2 s and backoff 10 s"),
        (acquire, {"ttl": 5, "lease": 5}, "lease"),
        (acquire, {"wait": 5, "timeout": 5}, "timeout"),
        (acquire, {"ttl": 1, "max_hold": "1d"}, "renewals need a ttl of 3 s at least"),
        (try_acquire, {"wait": 3}, "takes no wait=: it never waits"),
        (try_acquire, {"fair": True, "units": 2, "max_hold": 60}, r"elsewhere use dibs\.Semaphore"),
    ],
)
def test_what_makes_no_sense_fails_a_workflow_for_good(
    use: Callable[..., object], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ApplicationError) as caught:
        use(**options)
    assert isinstance(caught.value, Misused)
    assert caught.value.non_retryable
    assert re.search(words, str(caught.value))


def test_a_fair_semaphore_takes_what_no_permit_could() -> None:
    """Its workflow ID has a hash, and is escaped; it numbers more slots than slot mode."""
    for options in ({"resource": "x" * 512}, {"resource": "a\nb"}, {"capacity": 5_000}):
        assert repr(semaphore(fair=True, **options)).endswith(", fair=True)")


@pytest.mark.parametrize(
    ("asked", "ttl", "max_hold"),
    [
        ({}, 600.0, 86_400.0),
        ({"max_hold": "5m"}, 300.0, 300.0),
        ({"ttl": "15s", "max_hold": "4s"}, 4.0, 4.0),  # no lease is longer than it is held
        ({"ttl": "1m"}, 60.0, 500 * 60.0),  # for so many renewals
        ({"ttl": "2d"}, 2 * 86_400.0, 2 * 86_400.0),  # never less than one lease
    ],
)
def test_how_long_it_is_held(asked: dict[str, Any], ttl: float, max_hold: float) -> None:
    found = AcquireOptions.of(**asked)
    assert (found.ttl, found.max_hold) == (ttl, max_hold)


class NextRun(workflow.ContinueAsNewError):
    """Only subclasses can be made."""


def test_a_quarantine_begins_only_after_a_body_that_may_have_left_work_behind() -> None:
    errors = (None, TimeoutError(), ExceptionGroup("", [ValueError()]), Misused("x"), NextRun())
    assert [may_run_on(error) for error in errors] == [False, True, True, False, False]


KEY = b"lock:x"


def leased(ttl: float = 10.0, at: float = 100.0) -> BrokeredLease:
    lease = BrokeredLease("id", ttl)
    lease.take_reply(Granted(7, (1,), ttl), at)
    return lease


def pushed(at: float, window: float) -> Notification:
    proof = proof_of(KEY, "id", 7, (1,), at, window)
    return Notification(KEY, "", "wf:a:b", "granted", 7, (1,), at, window, proof=proof)


def test_a_grant_counts_from_when_it_was_asked_for_or_given_and_no_renewal_shortens_it() -> None:
    lease = leased()
    assert (lease.granted, lease.token, lease.slots) == (True, 7, (1,))
    assert lease.deadline == 100.0 + trusted(10.0)
    assert (lease.lost(108.0), lease.lost(109.0)) == (False, True)

    lease = BrokeredLease("id", 10.0)
    lease.take_reply(Queued(0, 1.0, now=5000.0), 100.0)  # the broker's clock is far ahead
    lease.take_notification(pushed(5100.0, 10.0), 203.0)
    assert lease.deadline == pytest.approx(199.0 + trusted(10.0)), "as long after the question"

    lease = BrokeredLease("id", 600.0)
    lease.take_notification(pushed(5100.0, 5.0), 200.0)
    assert lease.deadline == 200.0 + trusted(5.0), "never from later than it came"
    assert lease.renew_at < 202.0, "a grant that has to be claimed is claimed soon"
    lease.take_reply(Renewed(600.0), 201.0)
    deadline = 201.0 + trusted(600.0)
    assert (lease.deadline, lease.renew_at) == (deadline, 201.0 + 300.0)
    lease.take_reply(Renewed(1.0), 210.0)
    assert lease.deadline == deadline
    assert pause(3.0) == 1.0, "more of a short lease is left"


def test_a_grant_without_proof_is_not_believed() -> None:
    changes: tuple[dict[str, Any], ...] = (
        {"token": 8}, {"key": b"lock:y"}, {"token": 10**400}, {"token": "7"}, {"proof": 1},
    )  # fmt: skip
    for change in changes:
        lease = BrokeredLease("id", 10.0)
        lease.take_notification(replace(pushed(5100.0, 10.0), **change), 203.0)
        assert not lease.granted


@pytest.mark.parametrize("reply", [Queued(0, 1.0, now=0.0), Granted(8, (), 10.0)])
def test_a_lease_that_its_broker_no_longer_holds_is_lost_at_once(reply: Queued | Granted) -> None:
    """Its broker was ended, and a reminder that was under way has queued the id at the next one."""
    lease = leased()
    deadline = lease.deadline
    lease.take_reply(Granted(7, (1,), 9.9), 100.0)  # the same grant confirms it
    assert lease.ending is None
    lease.take_reply(reply, 101.0)
    assert lease.ending == REPLACED
    assert lease.lost(101.0)
    assert (lease.token, lease.deadline) == (7, deadline)
    lease.take_notification(Notification(KEY, "", "", "revoked", detail="by hand"), 102.0)
    assert lease.ending == REPLACED, "the first reason counts"


def prober(slots: int, *, backoff: float = 5.0, longest: float = 60.0) -> Prober:
    names = [str(number) for number in range(slots)]
    return Prober(names, random.Random(7), 0.0, backoff=backoff, longest=longest)


def events_of_a_wait(prober: Prober, seconds: float, *, long: bool = False) -> int:
    """The number of events of a waiter that never finds a free slot."""
    now, events = 0.0, 0
    while now < seconds:
        for _ in prober.round(now):
            prober.probed()
            events += PROBE
        now += prober.pause(now, history_is_long=long)
        events += PAUSE
    return events


def test_an_hour_takes_less_than_1000_events() -> None:
    for backoff, longest in ((5.0, 60.0), (5.0, 5.0), (0.05, 0.05)):
        for capacity in (1, 4, 100):
            probing = prober(capacity, backoff=backoff, longest=longest)
            # the rest is for what comes after the wait
            assert events_of_a_wait(probing, 3600.0) < 1000 - 50
    assert events_of_a_wait(prober(4), 86_400.0, long=True) < 7500, "a long history grows slowly"


def test_pauses_grow_and_are_jittered() -> None:
    probing = prober(1)
    bases = [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    pauses = [probing.pause(0.0) for _ in bases]
    assert all(base / 2 <= found <= base for found, base in zip(pauses, bases, strict=True))
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
