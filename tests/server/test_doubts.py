"""Ids of which a late copy may be under way: so many are remembered, those of late."""

import pytest

from dibs.model import Acquire, Command, Inspect, Release, Renew
from dibs.server import service as module
from dibs.server.service import Doubts

pytestmark = pytest.mark.once

KEY = b"lock:a"


@pytest.fixture
def doubts(monkeypatch: pytest.MonkeyPatch) -> Doubts:
    """With room for three."""
    monkeypatch.setattr(module, "MOST", 3)
    return Doubts(60.0)


def test_the_latest_are_remembered(doubts: Doubts) -> None:
    for lease_id in ("one", "two", "three", "one", "four"):
        doubts.add(lease_id)
    assert list(doubts.ids) == ["three", "one", "four"]


def test_a_release_of_such_an_id_outlives_whatever_is_under_way(doubts: Doubts) -> None:
    doubts.about(Acquire(KEY, "mine", "me", 30))
    assert doubts.heeded(Release(KEY, "mine")) == Release(KEY, "mine", bury=120)
    long_enough = Release(KEY, "mine", keep=1, bury=1000)
    assert doubts.heeded(long_enough) == long_enough
    assert doubts.heeded(Release(KEY, "other")) == Release(KEY, "other")


@pytest.mark.parametrize("command", [Renew(KEY, "mine", 30), Release(KEY, "mine"), Inspect(KEY)])
def test_nothing_is_granted_by_a_copy_of_anything_else(doubts: Doubts, command: Command) -> None:
    doubts.about(command)
    assert not doubts.ids
    doubts.add("mine")
    if type(command) is not Release:
        assert doubts.heeded(command) is command
