"""What a service tells of its locks, by its streams."""

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlencode

import msgspec

from dibs.backends.http import wire
from dibs.backends.http.names import MARK, encoded
from dibs.backends.http.translation import status_to_model
from dibs.cli.options import Kind
from dibs.cli.tail import Tail, Told
from dibs.cli.voice import Voice
from dibs.model import Status
from dibs.server.observatory.events import Event, read


def followed(
    url: str, prefix: bytes, kind: Kind | None, renewals: bool, voice: Voice
) -> Iterator[Event]:
    """What happens, for ever. Raises what ends the stream for good."""
    asked = {"prefix": MARK + encoded(prefix)} if prefix else {}
    asked |= {"kind": kind} if kind else {}
    asked |= {"renewals": "true"} if renewals else {}
    with closing(Tail(url, "/events" + (f"?{urlencode(asked)}" if asked else ""))) as tail:
        for told in tail:
            match told.kind:
                case "message":
                    yield read(told.data)
                case "reset":
                    voice.say("warning", "some events were missed")
                case _:
                    _say_how_it_stands(told, voice)


class Watch:
    """One lock's status, as often as it changes."""

    def __init__(self, url: str, key: bytes, voice: Voice) -> None:
        kind, _, name = key.partition(b":")
        path = f"/watch/locks/{MARK}{encoded(name)}?kind={kind.decode()}"
        self._tail = Tail(url, path)
        self._voice = voice

    def take(self, timeout: float) -> Status | None:
        """The next one; None if there is none for so long."""
        told = self._tail.take(timeout)
        if told is None:
            return None
        _say_how_it_stands(told, self._voice)
        if told.kind == "status":
            return status_to_model(msgspec.convert(told.data, wire.Status))
        return None


def _say_how_it_stands(told: Told, voice: Voice) -> None:
    """What became of the connection, where the event is of that."""
    match told.kind:
        case "lost":
            voice.say("warning", f"{told.data}; reconnecting")
        case "back":
            voice.say("back", f"reconnected to {told.data}")
        case _:
            pass
