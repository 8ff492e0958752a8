"""What is held, and waited for, at a server of the tests: by the commands that programs send."""

from itertools import count
from typing import Any

from dibs.stores.http.names import encoded
from tests.server.world import World

_NUMBERS = count(1)


class Held:
    """Somebody who takes and waits for things, under as many names as he likes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client = world.client()

    def take(self, key: str | bytes, owner: str, *, ttl: float = 600, **fields: Any) -> str:
        """A lease, or, with `queue=True`, a place in line that lasts; its id."""
        lease = f"lease-of-a-test-{next(_NUMBERS):0>8}"
        told = {"id": lease, "owner": owner, "ttl": ttl, "waiter_ttl": 600, **fields}
        assert self._send("acquire", key, told)["is"] in ("granted", "queued")
        return lease

    def wait(self, key: str | bytes, owner: str, **fields: Any) -> str:
        """A place in line."""
        return self.take(key, owner, queue=True, **fields)

    def renew(self, key: str | bytes, lease: str, ttl: float = 600) -> None:
        """Keep it."""
        assert self._send("renew", key, {"id": lease, "ttl": ttl})["is"] == "renewed"

    def release(self, key: str | bytes, lease: str) -> None:
        """Give it up."""
        assert self._send("release", key, {"id": lease})["is"] == "released"

    def _send(self, op: str, key: str | bytes, told: dict[str, Any]) -> dict[str, Any]:
        raw = key.encode() if isinstance(key, str) else key
        command = {"op": op, "key": encoded(raw), **told}
        answer = self.client.post("/v1/batch", json={"commands": [command]})
        assert answer.status_code == 200, answer.text
        reply: dict[str, Any] = answer.json()["replies"][0]
        return reply
