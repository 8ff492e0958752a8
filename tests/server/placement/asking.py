"""What tests ask of servers of several stores.

One that was kept waiting by others says 503 until it has read anew where directories live: then it is asked
again, with the same id, as that may be granted nevertheless.
"""

import time
from collections.abc import Callable
from secrets import token_urlsafe
from typing import Any

import httpx2

from tests.server.world import LONG, b64


def lock(name: str) -> str:
    return f"/v1/locks/{b64(name)}"


def acquired(client: httpx2.Client, name: str, **query: Any) -> dict[str, Any]:
    """A lease."""
    answer = _asked(client, name, query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def is_held(client: httpx2.Client, name: str, **query: Any) -> bool:
    """Whether somebody else has it who does not get it here."""
    return _asked(client, name, query).status_code == 409


def _asked(client: httpx2.Client, name: str, query: dict[str, Any]) -> httpx2.Response:
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
    """Whether it says that its directory drains."""
    return answer.status_code == 503 and answer.json()["type"] == "/problems/moving"


def moved(client: httpx2.Client, directory: str, to: str) -> bool:
    seen = client.get(f"/v1/move/{b64(directory)}/").json()
    return bool(seen["place"] == to and seen["phase"] == "settled")


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
