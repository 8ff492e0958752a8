"""What a workflow makes of a broker's words, without a server."""

from dataclasses import replace
from typing import Any

import pytest

from dibs.core.proof import proof_of
from dibs.core.timing import trusted
from dibs.model import Gone, Granted, Lost, Notification, Queued, Refused, Renewed
from dibs.temporal.fair.lease import BrokeredLease, pause

KEY = b"lock:x"


def granted(at: float, window: float) -> Notification:
    proof = proof_of(KEY, "id", 7, (1,), at, window)
    return Notification(KEY, "", "wf:a:b", "granted", 7, (1,), at, window, proof=proof)


def test_an_answer_counts_from_when_it_was_asked_for() -> None:
    lease = BrokeredLease("id", 10.0)
    assert lease.lost(0.0)
    lease.take_reply(Granted(7, (1,), 10.0), 100.0)
    assert (lease.granted, lease.token, lease.slots) == (True, 7, (1,))
    assert lease.deadline == 100.0 + trusted(10.0)
    assert not lease.lost(108.0)
    assert lease.lost(109.0)


def test_a_push_counts_from_its_grant_by_our_own_clock() -> None:
    lease = BrokeredLease("id", 10.0)
    lease.take_reply(Queued(0, 1.0, now=5000.0), 100.0)  # the broker's clock is far ahead
    lease.take_notification(granted(5100.0, 10.0), 203.0)
    assert lease.deadline == pytest.approx(199.0 + trusted(10.0))


@pytest.mark.parametrize(
    "change", [{"token": 8}, {"key": b"lock:y"}, {"token": 10**400}, {"token": "7"}, {"proof": 1}]
)
def test_a_grant_without_proof_is_not_believed(change: dict[str, Any]) -> None:
    lease = BrokeredLease("id", 10.0)
    lease.take_notification(replace(granted(5100.0, 10.0), **change), 203.0)
    assert not lease.granted


def test_a_push_never_counts_from_later_than_it_came() -> None:
    lease = BrokeredLease("id", 10.0)
    lease.take_notification(granted(5100.0, 10.0), 203.0)
    assert lease.deadline == 203.0 + trusted(10.0)


def test_a_grant_that_has_to_be_claimed_is_claimed_soon() -> None:
    lease = BrokeredLease("id", 600.0)
    lease.take_notification(granted(200.0, 5.0), 200.0)
    assert lease.deadline == 200.0 + trusted(5.0)
    assert lease.renew_at < 202.0
    lease.take_reply(Renewed(600.0), 201.0)
    assert lease.deadline == 201.0 + trusted(600.0)
    assert lease.renew_at == 201.0 + 300.0


def test_a_renewal_never_shortens() -> None:
    lease = BrokeredLease("id", 600.0)
    lease.take_reply(Granted(7, (), 600.0), 100.0)
    deadline = lease.deadline
    lease.take_reply(Renewed(1.0), 110.0)
    assert lease.deadline == deadline


def test_the_first_reason_of_a_loss_counts() -> None:
    lease = BrokeredLease("id", 10.0)
    lease.take_reply(Granted(7, (), 10.0), 100.0)
    lease.take_notification(Notification(KEY, "", "", "revoked", detail="by hand"), 101.0)
    lease.take_reply(Lost("expired"), 102.0)
    assert lease.ending is not None
    assert (lease.ending.reason, lease.ending.detail) == ("revoked", "by hand")
    assert lease.lost(101.0)


@pytest.mark.parametrize("reply", [Queued(0, 1.0, now=0.0), Granted(8, (), 10.0)])
def test_a_lease_that_its_broker_no_longer_holds_is_lost_at_once(reply: Queued | Granted) -> None:
    """Its broker was ended, and a reminder that was under way has queued the id at the next one."""
    lease = BrokeredLease("id", 10.0)
    lease.take_reply(Granted(7, (), 10.0), 100.0)
    deadline = lease.deadline
    lease.take_reply(reply, 101.0)
    assert lease.ending is not None
    assert lease.ending.reason == "expired"
    assert lease.lost(101.0)
    assert (lease.token, lease.deadline) == (7, deadline)


def test_the_same_grant_again_confirms_a_lease() -> None:
    lease = BrokeredLease("id", 10.0)
    lease.take_reply(Granted(7, (), 10.0), 100.0)
    lease.take_reply(Granted(7, (), 10.0), 101.0)
    assert lease.deadline == 101.0 + trusted(10.0)


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


def test_half_of_a_long_lease_is_left_when_it_is_renewed_and_more_of_a_short_one() -> None:
    assert pause(600.0) == 300.0
    assert pause(3.0) == 1.0
