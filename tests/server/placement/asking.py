"""Servers of one service with several stores, and what tests ask of them."""

import time
from collections.abc import Callable
from secrets import token_urlsafe
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from dibs.errors import BackendUnavailable
from dibs.server.placement.rules import PlacementSettings
from tests.server.inside import placements_of, records_of, table_reader_of
from tests.server.world import LONG, World, b64
from tests.server.world import lock as lock

FRESH = 0.5
"""Seconds; shorter than usual, as each move waits for it."""


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

    def client(self, of: World) -> httpx2.Client:
        return of.client(key=self.servers[0].admin_key)

    def store(self, server: int, place: str) -> Any:
        """A placement's own runtime, behind the router's back."""
        return placements_of(self.servers[server])[place]

    def know(self, directory: str, phase: str) -> None:
        """Wait until every server has read that a directory is at that step."""

        def has_read(server: World) -> bool:
            home = table_reader_of(server).table.homes.get(f"{directory}/".encode())
            return home is not None and home.phase == phase

        until(lambda: all(map(has_read, self.servers)))

    def close(self) -> None:
        for each in self.servers:
            each.close()


async def fail(*_: object) -> Any:
    raise BackendUnavailable("it is away")


def cut_off(of: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records can no longer be reached from one server."""
    for name in ("revision", "all", "get", "put"):
        monkeypatch.setattr(records_of(of), name, fail)


def acquired(client: httpx2.Client, name: str, **query: Any) -> dict[str, Any]:
    answer = _asked(client, name, query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def is_held(client: httpx2.Client, name: str) -> bool:
    return _asked(client, name, {}).status_code == 409


def _asked(client: httpx2.Client, name: str, query: dict[str, Any]) -> httpx2.Response:
    """Retries a 503 under the same id: a server that was kept waiting first reads where directories live."""
    params: dict[str, Any] = {"ttl": 60, "id": token_urlsafe(16)} | query
    found: list[httpx2.Response] = []

    def is_there() -> bool:
        found.append(client.post(lock(name), params=params))
        return found[-1].status_code != 503

    until(is_there)
    return found[-1]


def renewed(client: httpx2.Client, name: str, lease: str, ttl: float = 60) -> httpx2.Response:
    return client.patch(lock(name), params={"id": lease, "ttl": ttl})


def restriction(directory: str, api: str = "locks") -> str:
    """The path of a restriction."""
    return f"/v1/restrict/{api}/{b64(directory)}/"


def move(client: httpx2.Client, directory: str, to: str, **deadline: float | None) -> None:
    order = {"to": to} | deadline
    assert client.put(f"/v1/move/{b64(directory)}/", json=order).status_code == 200


def is_moving(answer: httpx2.Response) -> bool:
    return answer.status_code == 503 and answer.json()["type"] == "/problems/moving"


def progress(client: httpx2.Client, directory: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/v1/move/{b64(directory)}/").json()
    return found


def moved(client: httpx2.Client, directory: str, to: str) -> bool:
    seen = progress(client, directory)
    return bool(seen["place"] == to and seen["phase"] == "settled")


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
