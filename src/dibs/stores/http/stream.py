"""What is heard over a stream: that it stands, signs of life, and pushes."""

from secrets import token_urlsafe
from typing import NoReturn

import msgspec

from dibs.model import Notification
from dibs.stores.http import wire
from dibs.stores.http.dialogue import Dialogue
from dibs.stores.http.events import Events
from dibs.stores.http.reading import Answer, NotHttp
from dibs.stores.http.wire import push_to_model

MISSED = 2
"""A stream is dead once so many signs of life in a row have not come."""

SLACK = 1.0
"""And a little later, in seconds, since nobody is punctual."""


def nowhere() -> str:
    """An inbox while no stream is to be had: the store pushes to somebody, and waiters ask in time."""
    return f".{token_urlsafe(12)}"


MISSED_SOME = "notifications resumed; some may have been missed"

_read_hello = msgspec.json.Decoder(wire.Hello).decode
_read_push = msgspec.json.Decoder(wire.Notification).decode


class Ear:
    """Reads one stream, whoever brings its bytes."""

    def __init__(self, dialogue: Dialogue) -> None:
        self.hello: wire.Hello | None = None
        """Once it is there, the stream stands."""
        self.missed = False
        """Some pushes were lost on their way to the service."""
        self._dialogue = dialogue
        self._events = Events()
        self._heard: list[Notification] = []

    @property
    def inbox(self) -> str:
        """Where its pushes are sent."""
        return "" if self.hello is None else self.hello.inbox

    @property
    def longest(self) -> float:
        """A stream that is silent for longer is dead, in seconds."""
        return MISSED * (5.0 if self.hello is None else self.hello.beat) + SLACK

    def heed(self, answer: Answer) -> "Ear | None":
        """The head of the answer has come. Raises what it says, unless it is a stream's."""
        if answer.status == 200:
            self._dialogue.check_stream(answer)
            return self
        return None  # its body tells what is the matter

    def __call__(self, piece: bytes) -> None:
        """Take a piece of the stream."""
        try:
            for kind, data in self._events.feed(piece):
                if kind == "hello":
                    self.hello = _read_hello(data)
                elif kind == "notification":
                    self._heard.append(push_to_model(_read_push(data), self.inbox))
                elif kind == "recheck":
                    self.missed = True
        except (ValueError, msgspec.MsgspecError) as error:
            raise NotHttp(f"its stream can't be read: {error}") from error

    def take(self) -> list[Notification]:
        """What was pushed since this was asked last."""
        heard, self._heard = self._heard, []
        return heard

    def ended(self, found: Answer | Exception) -> NoReturn:
        """Raises what ended it: an answer that is no stream, its end, or what broke it."""
        if isinstance(found, Exception):
            raise found
        self._dialogue.check_stream(found)
        raise ConnectionResetError("the service ended the stream")
