"""Ctrl-C while several are acquired, held or released: at most one ttl is lost by it."""

from collections.abc import Callable

import pytest

from dibs.sync import AllOf
from tests.runtime.test_interrupts import TTL, Action, Site, every_bytecode
from tests.runtime.test_interrupts import no_surprises as no_surprises

pytestmark = [
    pytest.mark.slow,
    pytest.mark.once,
    # an interrupt may come between making a coroutine and starting it
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]

STRIDES = [101, pytest.param(17, marks=pytest.mark.long)]
"""One in so many bytecodes; there are many more of them than in an acquire of one."""


class SiteOfTwo(Site):
    """Two locks at once."""

    def __init__(self) -> None:
        super().__init__()
        self.other = self.mine.lock("b", ttl=TTL)
        self.both = AllOf(self.other, self.lock)

    def trouble(self) -> str | None:
        """What is wrong with the one, else with the other, once a ttl has passed."""
        trouble = super().trouble()
        free = self.others.lock("b").try_acquire()
        if free is None:
            return trouble or "the other key is not free"
        free.release()
        again = self.both.try_acquire()
        if again is None:
            return trouble or "the thread that was interrupted can't acquire both any more"
        again.release()
        return trouble


def within_a_block(site: Site) -> Action:
    assert isinstance(site, SiteOfTwo)
    one, other = site.lock, site.other

    def action() -> None:
        with AllOf(other, one):
            pass

    return action


def acquire_and_release(site: Site) -> Action:
    assert isinstance(site, SiteOfTwo)
    both = site.both

    def action() -> None:
        both.acquire().release()

    return action


def refused(site: Site) -> Action:
    """One of them is held by another, so what was granted of the other is given back."""
    assert isinstance(site, SiteOfTwo)
    both, others = site.both, site.others

    def action() -> None:
        held = others.lock("b", ttl=TTL).acquire()
        try:
            assert both.try_acquire() is None
        finally:
            held.release()

    return action


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("make", [within_a_block, acquire_and_release, refused])
def test_an_interrupt_costs_at_most_a_ttl(make: Callable[[Site], Action], stride: int) -> None:
    troubles = every_bytecode(make, cold=False, new_site=SiteOfTwo, stride=stride)
    assert list(troubles) == []
