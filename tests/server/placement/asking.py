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

FRESH = 0.5
"""Seconds; shorter than usual, as each move waits for it."""


def memory(name: str, **more: str) -> PlacementSettings:
    return PlacementSettings(name=name, url=f"memory://{uuid4()}", **more)


class Fleet:
    """Servers over the same records, with whatever stores each has."""

    def __init__(self) -> None:
        self.a, self.b = memory("a"), memory("b")
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
        """A place's own runtime, behind the router's back."""
        return placements_of(self.servers[server])[place]

    def know(self, directory: bytes, phase: str) -> None:
        """Wait until every server has read that a directory is at that step."""
        for number in range(len(self.servers)):
            self.know_at(number, directory, phase)

    def know_at(self, server: int, directory: bytes, phase: str) -> None:
        def has_read() -> bool:
            home = table_reader_of(self.servers[server]).table.homes.get(directory)
            return home is not None and home.phase == phase

        until(has_read)

    def close(self) -> None:
        for each in self.servers:
            each.close()


def away(of: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records can no longer be reached from one server."""

    async def fail(*_: object) -> Any:
        raise BackendUnavailable("the records are away")

    for name in ("revision", "all", "get", "put"):
        monkeypatch.setattr(records_of(of), name, fail)


def lock(name: str) -> str:
    return f"/v1/locks/{b64(name)}"


def acquired(client: httpx2.Client, name: str, **query: Any) -> dict[str, Any]:
    answer = _asked(client, name, query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def is_held(client: httpx2.Client, name: str, **query: Any) -> bool:
    return _asked(client, name, query).status_code == 409


def _asked(client: httpx2.Client, name: str, query: dict[str, Any]) -> httpx2.Response:
    """Retries a 503 under the same id: a server that was kept waiting first reads where directories live."""
    params: dict[str, Any] = {"ttl": 60, "id": token_urlsafe(16)} | query
    found: list[httpx2.Response] = []

    def is_there() -> bool:
        found.append(client.post(lock(name), params=params))
        return found[-1].status_code != 503

    until(is_there)
    return found[-1]


def released(client: httpx2.Client, name: str, lease: dict[str, Any]) -> None:
    assert client.delete(lock(name), params={"id": lease["id"]}).status_code == 200


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
