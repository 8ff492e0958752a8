"""Base class of all parts of the conformance suite."""

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dibs.stores.port import Store
from dibs.testing.clock import ManualClock
from dibs.testing.conformance.world import World
from dibs.testing.connections import Mode


class Suite:
    """Cases that a store must pass. Inherit, and say how your store is made.

    A subclass overrides `make_store`; one whose store keeps its own time also sets `manual =
    False`, a short `second`, and lets that time pass in `pass_time`.

    A store without a clock (`Capabilities.clock`) takes the clock that it is given for its process's own.
    Its leases may last a hundredth longer (`World.at_most`, `World.outlast`). It answers the vectors as the
    ledger does for its only observer (see `observer`).
    """

    modes: ClassVar[tuple[Mode, ...]] = ("async", "blocking")
    """The sides that the store serves."""
    manual: bool = True
    """The store uses the clock that it is given."""
    second: float = 1.0
    """What a case calls a second; less for a store whose time really has to pass."""
    many: int = 2000
    """How many keys a case uses that needs very many; fewer for a store to which each is dear."""

    def make_store(self, clock: ManualClock, tmp_path: Path) -> Store:
        """Make the store, not yet connected; made again in `tmp_path` it is the same one.

        Stores that outlive their process must keep what they hold between the two; other tests may
        use the same store, as each case has names of its own.
        """
        raise NotImplementedError

    def pass_time(self, clock: ManualClock, seconds: float) -> None:
        """Let that much of the store's time pass."""
        clock.advance(seconds)

    def replays(self, steps: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the store gives the ledger's own answers to a plan (see `vectors`).

        One that has limits of its own says no to a plan that goes beyond them.
        """
        return True

    @pytest.fixture(params=["async", "blocking"])
    def world(self, request: pytest.FixtureRequest, tmp_path: Path) -> World:
        """The store under test, on each of both sides."""
        if request.param not in self.modes:
            pytest.skip(f"this store does not serve the {request.param} side")
        return World(self, request.param, tmp_path)


type Body[S] = Callable[[S, World], Coroutine[Any, Any, None]]
type Case[S] = Callable[[S, World], None]


def case[S: Suite](body: Body[S]) -> Case[S]:
    """Make a test of a coroutine that is written once for both sides."""
    return needing()(body)


def needing[S: Suite](*capabilities: str) -> Callable[[Body[S]], Case[S]]:
    """Likewise, for stores that promise all of `capabilities` (words of `Capabilities.names`, or flags)."""

    def decorate(body: Body[S]) -> Case[S]:
        @functools.wraps(body)
        def test(self: S, world: World) -> None:
            promised = world.store.capabilities
            missing = {each for each in capabilities if not getattr(promised, each, False)}
            missing -= promised.names()
            if "manual" in missing and world.manual:
                missing.remove("manual")
            if missing:
                pytest.skip(f"this store does not promise: {', '.join(sorted(missing))}")
            world.run(body(self, world))

        del test.__wrapped__  # or pytest takes it for a coroutine
        return test

    return decorate
