"""One client process from its start to its death: some hands, and what befalls all of them."""

from collections.abc import Sequence
from typing import Any

from tests.torture.actions import ACTIONS, Action
from tests.torture.engine import Process
from tests.torture.hand import Hand
from tests.torture.kinds import Here
from tests.torture.simruntime import SimRuntime
from tests.torture.world import World

HANDS = 4


class Life:
    """One client process."""

    def __init__(self, process: Process, world: World, kinds: Sequence[str]) -> None:
        self.process = process
        self.world = world
        self.runtime = SimRuntime(process, world.network)
        self.leases = 0
        self.primitives: dict[Any, Any] = {}
        """Those that its hands share."""
        self._kinds = kinds
        self._weights = [ACTIONS[kind].weight for kind in kinds]
        self.hands = [Hand(self, number) for number in range(HANDS)]
        for hand in self.hands:
            process.spawn(hand.live())

    def draw_action(self) -> tuple[str, Action]:
        """What a hand does next."""
        name = self.world.engine.random.choices(self._kinds, self._weights)[0]
        return name, ACTIONS[name].do

    def shared(self, make: Any, *about: Any, **options: Any) -> Any:
        """A primitive that its hands share."""
        name = make, about, tuple(options.items())
        found = self.primitives.get(name)
        if found is None:
            found = self.primitives[name] = make(*about, **options)
            for each in (found, *vars(found).values()):
                if isinstance(each, Here):
                    each.runtime = self.runtime
        return found

    def stop(self, seconds: float) -> None:
        """As SIGSTOP does; SIGCONT comes later."""
        self._disturbed(None)
        self.process.pause(seconds)
        self.world.engine.at(self.process.paused_until, self._disturbed)

    def die(self) -> None:
        """As kill -9 does."""
        self._disturbed(None)
        self.process.die()

    def cancel(self) -> str:
        """Interrupt one hand in what it does; tell what that was."""
        hand = self.world.engine.random.choice(self.hands)
        if hand.task is not None and hand.action:
            hand.task.cancel()
        return hand.action

    def _disturbed(self, _: object) -> None:
        keys = dict.fromkeys(key for hand in self.hands for key in hand.keys)
        for key in keys or ("",):
            self.world.record("disturbed", key, process=self.process.number)
