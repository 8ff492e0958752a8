"""What all simulated processes share: the store, what the leases protect, and the history."""

from collections import Counter
from typing import Any

from dibs.core.timing import END_OF_TIME
from dibs.model import Release, Released, Reply
from dibs.testing import HistoryEvent
from dibs.testing.clock import EPOCH
from tests.torture.engine import Engine, Process
from tests.torture.network import Message, Network

LOOKED_AT = 6.0
"""So long after somebody has given up nothing of it is left: four messages may have got lost meanwhile."""

LONG = 10.0
"""A hold that is left behind with this ttl stands when it is looked for."""

NO_TIME = 2 * END_OF_TIME
"""A store whose clock shows this counts its tokens one by one."""


class Resources:
    """What the leases protect: ones that compare tokens."""

    def __init__(self) -> None:
        self.newest: dict[tuple[str, int | None], int] = {}

    def accepts(self, key: str, token: int, slots: tuple[int, ...]) -> bool:
        places = [(key, slot) for slot in slots or (None,)]
        if any(token < self.newest.get(place, 0) for place in places):
            return False
        for place in places:
            self.newest[place] = token
        return True


class World:
    def __init__(self, seed: int) -> None:
        self.engine = Engine(seed, stamp=EPOCH if seed % 2 else NO_TIME)
        self.network = Network(self.engine, self.seen)
        self.resources = Resources()
        self.history: list[HistoryEvent] = []
        self.tally: Counter[str] = Counter()
        self.closing = False
        """Hands begin nothing any more, and come to an end."""
        self.away_since = -1.0
        self.called: dict[str, str] = {}
        """By id: what the history calls a lease."""

    @property
    def cycles(self) -> int:
        return self.tally.total()

    def record(self, what: Any, key: str = "", **more: Any) -> None:
        self.history.append(HistoryEvent(self.engine.now, what, key)._replace(**more))

    def seen(self, message: Message, reply: Reply) -> None:
        """The store has answered: a task lock stays closed for a while."""
        command, key = message.command, message.command.key.decode()
        if not isinstance(command, Release) or not key.startswith("tasklock:"):
            return
        if isinstance(reply, Released):
            name, until = self.called.get(command.id, ""), self.engine.now + command.retain
            self.record("kept", key, lease=name, invoked=message.sent, until=until)

    # -- whatever is given up leaves nothing behind ----------------------------------------------------

    def look_for(self, process: Process, key: bytes, note: str, ttl: float) -> None:
        """Somebody has given up, and noted it so: see later that nothing of it is left."""
        if ttl >= LONG and not self.closing:
            about = process, key, note, self.engine.now
            self.engine.at(self.engine.now + LOOKED_AT, self._look, about)

    def _look(self, about: tuple[Process, bytes, str, float]) -> None:
        process, key, note, since = about
        undisturbed = process.alive and process.disturbed < since and self.away_since < since
        if undisturbed and note not in self.network.doubled and self.network.away_until < since:
            status = self.network.peek(key)
            held = any(each.note == note for each in status.holders)
            if held or any(each.note == note for each in status.waiters):
                self.record("left", key.decode(), process=process.number, resource=note)
