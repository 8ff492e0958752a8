"""What a semaphore of workflow code and its `acquire()` refuse at once, and with which words."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from dibs.core.names import key_of
from dibs.errors import InvalidName
from dibs.temporal import Lock, Semaphore
from dibs.temporal.errors import Misused
from dibs.temporal.fair.acquire import unanswered
from dibs.temporal.fair.calls import Broker
from dibs.temporal.options import AcquireOptions

pytestmark = pytest.mark.once

checked = AcquireOptions.of


def said(what: Callable[[], object]) -> str:
    """Every refusal fails a workflow, and is never tried again."""
    with pytest.raises(ApplicationError) as caught:
        what()
    assert isinstance(caught.value, Misused)
    assert caught.value.non_retryable
    return str(caught.value)


def pool(**options: Any) -> Semaphore:
    asked: dict[str, Any] = {"resource": "x", "capacity": 2, **options}
    return Semaphore(**asked)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fair": True, "armed": False}, "armed=False is for slot mode"),
        ({"fair": 1}, "fair is 1: give True or False"),
        ({"armed": "yes"}, "armed is 'yes'"),
        ({"task_queue": ""}, "task_queue is ''"),
        ({"task_queue": " "}, "task_queue is ' '"),
        ({"capacity": 1_000_000}, "at most 1000 slots.*use fair=True"),
        ({"resource": "a\nb"}, "control characters"),
        ({"resource": "x" * 300}, "255 bytes"),
        ({"resource": "x" * 600, "fair": True}, "512 bytes"),
        ({"ttl": 5}, "no option ttl= here; .* go to acquire"),
    ],
)
def test_what_makes_no_semaphore(options: dict[str, Any], words: str) -> None:
    found = said(lambda: pool(**options))
    assert re.search(words, found)


def test_an_empty_name_is_refused_as_everywhere() -> None:
    with pytest.raises(InvalidName) as caught:
        key_of("semaphore", "")
    assert said(lambda: pool(resource="")) == str(caught.value)


def test_a_broker_takes_what_no_permit_could() -> None:
    """Its workflow ID has a hash, and is escaped; it numbers more slots than slot mode."""
    assert pool(fair=True, resource="x" * 512).resource == "x" * 512
    assert pool(fair=True, resource="a\nb").resource == "a\nb"
    assert pool(fair=True, capacity=5_000).capacity == 5_000


@pytest.mark.parametrize(
    ("fair", "asked", "words"),
    [
        (False, {"units": 2}, "units= and priority= need fair=True"),
        (False, {"priority": 1}, "need fair=True"),
        (True, {"backoff": 2}, "backoff= is for slot mode"),
        (True, {"max_backoff": 2}, "max_backoff= is for slot mode"),
        (False, {"backoff": 10, "max_backoff": 2}, "max_backoff is 2 s and backoff 10 s"),
        (False, {"max_backoff": 0}, "max_backoff is 0 s"),
        (False, {"note": 7}, "note is 7: give a text"),
        (False, {"auto_renew": "no"}, "auto_renew is 'no'"),
    ],
)
def test_what_is_refused_before_anything_is_asked_for(
    fair: bool, asked: dict[str, Any], words: str
) -> None:
    assert words in said(lambda: pool(fair=fair).acquire(**asked))


def test_no_lease_is_longer_than_it_is_held() -> None:
    assert (
        checked(max_hold="5m").ttl,
        checked(ttl="1m", max_hold="5m").ttl,
    ) == (300.0, 60.0)
    short = checked(ttl="15s", max_hold="4s")
    assert (short.ttl, short.max_hold) == (4.0, 4.0)


def test_unless_told_it_is_held_for_a_day_or_for_so_many_renewals() -> None:
    day = 86_400.0
    assert (checked().ttl, checked().max_hold) == (600.0, day)
    assert checked(ttl="1h").max_hold == day
    assert checked(ttl="1m").max_hold == 500 * 60.0
    assert checked(ttl="2d").max_hold == 2 * day, "never less than one lease"


def test_a_short_longest_pause_shortens_the_first() -> None:
    assert (
        checked(max_backoff=2).backoff,
        checked(max_backoff=2).max_backoff,
    ) == (2.0, 2.0)


def test_it_shows_whether_it_is_fair() -> None:
    assert repr(pool(fair=True)) == "Semaphore('x', capacity=2, fair=True)"
    assert repr(pool()) == "Semaphore('x', capacity=2)"
    assert (repr(Lock("x", fair=True)), repr(Lock("x"))) == ("Lock('x', fair=True)", "Lock('x')")


def test_a_broker_that_does_not_answer_is_named_and_so_is_its_end() -> None:
    """Who found it there can't know its queue; who started it does."""
    broker = Broker(b"semaphore:x y", "typo-queue")
    found = str(unanswered(broker, 5.0, was_there=True))
    started = str(unanswered(broker, 5.0, was_there=False))
    for each in (found, started):
        assert "temporal workflow terminate --workflow-id dibs:semaphore:x%20y" in each
        assert "for 5 s" in each
    assert "the task queue 'typo-queue', or whichever it is on" in found
    assert "nobody serves the task queue 'typo-queue', on which it has just been started" in started


@pytest.mark.parametrize(
    ("options", "asked", "words"),
    [
        ({}, {"wait": 3}, "takes no wait=: it never waits"),
        ({}, {"timeout": 3}, "takes no timeout="),
        ({}, {"colour": 3}, "takes no colour="),
        ({}, {"units": 2}, "need fair=True"),
        ({"fair": True}, {"units": 2, "priority": 5, "max_hold": 60}, "is for workflow code"),
    ],
)
def test_what_try_acquire_refuses(
    options: dict[str, Any], asked: dict[str, Any], words: str
) -> None:
    trying = pool(**options).try_acquire(**asked)
    assert words in said(lambda: trying.send(None))
