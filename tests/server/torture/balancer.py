"""What stands between clients and two servers: one address, and a way to each that can be made to fail."""

import random
from asyncio import Protocol
from collections.abc import Sequence

from dibs.testing import FaultProxy
from tests.servers.ports import HOST, free_port

IN_VAIN = 200
"""Bytes of an answer after which a connection is reset: its head, at most."""
DRIBBLE = 500.0
"""Bytes a second of a way that dribbles: a few at a time."""


class Balancer(FaultProxy):
    """Spreads connections, each by lot, over those ways that it believes to lead to a server."""

    def __init__(self, ways: Sequence[FaultProxy], seed: int) -> None:
        self.ways = tuple(ways)
        self._believed = list(ways)
        self._draw = random.Random(seed)
        super().__init__(HOST, ways[0].port, listen=free_port())

    def avoid(self, way: FaultProxy) -> None:
        """A look has shown that nobody answers there; the last way is never given up."""
        if self._believed != [way]:
            self._believed = [each for each in self._believed if each is not way]

    def believe(self, way: FaultProxy) -> None:
        """Somebody answers there again."""
        self._believed = [each for each in self.ways if each is way or each in self._believed]

    def _accept(self) -> Protocol:
        way = self._draw.choice(self._believed)
        self._upstream = (way.host, way.port)
        return super()._accept()


FAULTS = {
    "connections cut": lambda way, draw: way.cut(),
    "cut in answers": lambda way, draw: way.reset_after(draw.randint(1, IN_VAIN), times=8),
    "cut in requests": lambda way, draw: way.reset_after(
        draw.randint(1, IN_VAIN), "to_server", times=8
    ),
    "black hole": lambda way, draw: way.hang(),
    "answers lost": lambda way, draw: way.drop_replies(),
    "answers late": lambda way, draw: way.delay(draw.uniform(0.02, 0.4), draw.uniform(0.0, 0.4)),
    "requests late": lambda way, draw: way.delay(
        draw.uniform(0.02, 0.4), draw.uniform(0.0, 0.4), "to_server"
    ),
    "dribble": lambda way, draw: way.throttle(DRIBBLE),
    "refused": lambda way, draw: way.refuse(),
}
"""What befalls a way until it is healed."""
