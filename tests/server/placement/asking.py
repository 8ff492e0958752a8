"""Servers of one service with several stores, and what tests ask of them."""

from functools import partial
from secrets import token_urlsafe
from typing import Any
from uuid import uuid4

import httpx2

from dibs.server.placement.rules import PlacementSettings
from tests.server.world import Client, World, b64, lock
from tests.servers.waiting import wait_until

FRESH = 0.5
"""Seconds; shorter than usual, as each move waits for it."""

until = partial(wait_until, what="the servers get there")


def memory(name: str, **more: str) -> PlacementSettings:
    return PlacementSettings(name=name, url=f"memory://{uuid4()}", **more)


class Fleet:
    """Servers over the same records, with whatever stores each has."""

    def __init__(self) -> None:
        self.a, self.b = memory("a", region="DE"), memory("b", region="US")
        self.servers: list[World] = []
        self._records = f"memory://{uuid4()}"

    def start(self, *placements: PlacementSettings, store: str = "") -> World:
        found = World.over(
            leases=store, records=self._records, placement=placements, placement_fresh=FRESH
        )
        self.servers.append(found)
        return found

    def client(self, of: World) -> Client:
        return of.client(key=self.servers[0].admin_key)

    def store(self, server: int, place: str) -> Any:
        """A placement's own runtime, behind the router's back."""
        return self.servers[server].runtime.named[place]

    def know(self, directory: str, phase: str) -> None:
        """Wait until every server has read that a directory is at that step."""

        def has_read(server: World) -> bool:
            home = server.runtime.reader.table.homes.get(f"{directory}/".encode())
            return home is not None and home.phase == phase

        until(lambda: all(map(has_read, self.servers)))

    def close(self) -> None:
        for each in self.servers:
            each.close()


def acquired(client: Client, name: str, **query: Any) -> dict[str, Any]:
    answer = _asked(client, name, query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def is_held(client: Client, name: str) -> bool:
    return _asked(client, name, {}).status_code == 409


def _asked(client: Client, name: str, query: dict[str, Any]) -> httpx2.Response:
    """Retries a 503 under the same id: a server that was kept waiting first reads where directories live."""
    params: dict[str, Any] = {"ttl": 60, "id": token_urlsafe(16)} | query
    found: list[httpx2.Response] = []

    def is_there() -> bool:
        found.append(client.post(lock(name), params=params))
        return found[-1].status_code != 503

    until(is_there)
    return found[-1]


def restriction(directory: str, api: str = "locks") -> str:
    return f"/v1/restrict/{api}/{b64(directory)}/"


def is_moving(answer: httpx2.Response) -> bool:
    return answer.status_code == 503 and answer.json()["type"] == "/problems/moving"
