"""The ledger in Lua, asked directly on a real server."""

from collections.abc import Sequence
from typing import Any

from dibs.model import Command, Reply, Wakeup
from dibs.stores.redis import script
from tests.servers.redis import RedisServer

NOW = 1000.0
STAMP = 1_700_000_000_000_000
AT: dict[str, Any] = {"now": NOW, "stamp": STAMP}
"""The time, for tests in which it stands still."""


class Scripted:
    """The script on a server. Calls come from inbox "here", and "there" listens to its own."""

    def __init__(self, server: RedisServer, source: bytes = script.SOURCE) -> None:
        redis: Any = server.client()
        self.redis = redis
        self.sha = self.redis.script_load(source)
        self._pubsub = self.redis.pubsub()
        self._pubsub.subscribe("there")
        self._pubsub.get_message(timeout=5)

    def close(self) -> None:
        self._pubsub.close()
        self.redis.close()

    def evaluate(self, call: script.Call) -> Any:
        return self.redis.execute_command(
            "EVALSHA", self.sha, len(call.keys), *call.keys, *call.args
        )

    def apply(self, batch: Sequence[Command], **options: Any) -> tuple[list[Reply], list[Wakeup]]:
        """The replies, and whatever "here" and "there" are woken with."""
        raw = self.evaluate(script.call_for(batch, inbox="here", **options))
        replies, wakeups = script.read_answer(raw, batch)
        assert all(wakeup.inbox == "here" for wakeup in wakeups)
        return replies, wakeups + self.published()

    def ask(self, *batch: Command, **options: Any) -> Any:
        """The reply to one command, or the replies to some; typed loosely, as tests look inside."""
        replies, _ = self.apply(batch, **options)
        return replies if len(batch) > 1 else replies[0]

    def published(self) -> list[Wakeup]:
        """What "there" has been sent since it was last asked."""
        self.redis.publish("there", b"the end")
        found: list[Wakeup] = []
        while True:
            message = self._pubsub.get_message(timeout=5)
            assert message is not None, "the subscription is silent"
            if message["data"] == b"the end":
                return found
            wakeups = script.read_pushes(message["data"], "there")
            assert wakeups, message
            found += wakeups

    def everything(self) -> dict[bytes, bytes]:
        """All that lies on the server, to tell whether it has changed."""
        return {key: self.redis.dump(key) for key in self.redis.keys("*")}
