"""What those who watch are told of an acquire."""

import pytest

from dibs.model import Acquire, Command, Granted, Reply
from dibs.server.principal import Principal
from tests.server.test_api_locks import acquired
from tests.server.world import World

pytestmark = pytest.mark.once


@pytest.mark.parametrize("wait", [0, 5])
def test_all_that_was_asked_for_is_told(servers: tuple[World, World], wait: float) -> None:
    """Also of one that may wait for its turn."""
    seen: list[tuple[Command, Reply]] = []

    def see(_: Principal, command: Command, reply: Reply) -> None:
        seen.append((command, reply))

    observers = servers[0].server.service.observers
    observers.append(see)
    name = f"watched/{wait}"
    query = {"capacity": 3, "units": 2, "priority": 7, "note": "nightly", "wait": wait}
    held = acquired(servers[0].client(), name, **query)
    observers.remove(see)
    ((command, reply),) = seen
    assert type(command) is Acquire
    assert (command.key, command.id) == (f"semaphore:{name}".encode(), held["id"])
    assert (command.owner, command.ttl) == ("web-3", 30)
    assert (command.units, command.capacity, command.priority) == (2, 3, 7)
    assert command.queue is bool(wait)
    assert command.note.startswith("nightly")
    assert type(reply) is Granted
    assert (reply.token, reply.slots) == (held["sequencer"], tuple(held["slots"]))
