"""What happens in a store that tells nobody: found by looking at it again and again."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dibs.cli.options import Kind
from dibs.cli.voice import Voice
from dibs.errors import BackendUnavailable
from dibs.server.observatory.events import Event
from dibs.server.observatory.picture import Picture

if TYPE_CHECKING:
    from dibs.sync import Client


def polled(
    client: "Client", prefix: bytes, kind: Kind | None, every: float, voice: Voice
) -> Iterator[Event]:
    """What happens, for ever. Raises `BackendUnavailable` if not even the first look succeeds."""
    told: list[Event] = []
    picture = Picture(told.append, time.monotonic, time.time)
    has_looked = False
    while True:
        begun, walk = time.monotonic(), picture.begin_walk()
        try:
            for status in client.list(prefix, kind):
                picture.looked(status, begun, walk=walk)
            picture.walked(walk, begun)
            has_looked = True
        except BackendUnavailable as error:
            if not has_looked:
                raise
            voice.say("warning", f"{error}; still trying")
        yield from told
        told.clear()
        time.sleep(every)
