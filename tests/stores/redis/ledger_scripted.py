"""The ledger in Lua, asked directly on a real server."""

from collections.abc import Sequence
from hashlib import sha1
from typing import Any

from redis.exceptions import ResponseError

from dibs.model import Command, Notification, Reply
from dibs.stores.redis import ledger
from dibs.stores.redis.errors import explain
from dibs.stores.redis.ledger import CallContext
from dibs.stores.redis.url import Endpoint
from dibs.testing import ManualClock
from tests.servers.redis import RedisServer


class Scripted:
    """The ledger on an empty server, as a function or a script. "there" listens to its own notifications."""

    omits_passing_heads = True
    sweeps = False

    def __init__(
        self, server: RedisServer, library: bytes = ledger.LIBRARY, *, as_script: bool = False
    ) -> None:
        redis: Any = server.client()
        self.redis = redis
        self.empty()
        self.words = ledger.SCRIPT
        if as_script:
            self.redis.script_load(ledger.TEXT)
        else:
            name = b"t" + sha1(library).hexdigest().encode()  # several can be on one server
            library = library.replace(ledger.FUNCTION[1], name)
            self.redis.execute_command("FUNCTION", "LOAD", "REPLACE", library)
            self.words = (b"FCALL", name)
        self._pubsub = self.redis.pubsub()
        self._pubsub.subscribe("there")
        self._pubsub.get_message(timeout=5)

    def empty(self) -> None:
        self.redis.flushall()

    def check(self) -> None:
        """Nothing contradicts itself."""

    def sweep(self, time: ManualClock, keys: Sequence[bytes]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.empty()
        self._pubsub.close()
        self.redis.close()

    def apply(
        self,
        batch: Sequence[Command],
        time: ManualClock | None = None,
        *,
        holdoff: float = 0.0,
    ) -> tuple[list[Reply], list[Notification]]:
        """The replies to a batch from inbox "here", and the notifications for "here" and "there"."""
        call = CallContext(time, holdoff, "here").call(batch)
        words = (*self.words, len(call.keys), *call.keys, *call.args)
        try:
            raw = self.redis.execute_command(*words)
        except ResponseError as error:
            raise explain(error, Endpoint("server")) from error
        replies, notifications = ledger.read_answer(raw, batch, "here")
        return replies, notifications + self._published()

    def ask(self, *batch: Command, **options: Any) -> Any:
        """The reply to one command, or the replies to some; typed loosely, as tests look inside."""
        replies, _ = self.apply(batch, **options)
        return replies if len(batch) > 1 else replies[0]

    def _published(self) -> list[Notification]:
        """What "there" has been sent since it was last asked."""
        self.redis.publish("there", b"the end")
        found: list[Notification] = []
        while True:
            message = self._pubsub.get_message(timeout=5)
            assert message is not None, "the subscription is silent"
            if message["data"] == b"the end":
                return found
            notifications = ledger.read_published(message["data"], "there")
            assert notifications, message
            found += notifications

    def everything(self) -> dict[bytes, bytes]:
        """All that lies on the server, to tell whether it has changed."""
        return {key: self.redis.dump(key) for key in self.redis.keys("*")}
