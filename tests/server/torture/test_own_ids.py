"""A caller whose server was paused holds through another server: the first must not give that up."""

import http.client
import json
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.server.torture.servers import running
from tests.server.world import b64
from tests.servers.ports import HOST
from tests.servers.waiting import wait_until
from tests.stores.http.processes import DibsServer

HOLDER, WAITER = "holder-0123456789-0123456789", "waiter-0123456789-0123456789"

LOOKS = 50
"""Requests that a server answers after another one, which it has begun to work on by then."""


def sent(server: DibsServer, method: str, **query: Any) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=10.0)
    path = f"/v1/locks/{b64('x')}?{urlencode(query)}"
    connection.request(method, path, headers={"Authorization": f"Bearer {server.key}"})
    return connection


def ask(server: DibsServer, method: str, **query: Any) -> dict[str, Any]:
    with closing(sent(server, method, **query)) as connection:
        found: dict[str, Any] = json.loads(connection.getresponse().read() or b"{}")
        return found


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.multiprocess
@pytest.mark.parametrize("bug", ["", "gives-up-for-the-caller"])
def test_a_server_that_was_paused_gives_up_no_id_of_its_caller(tmp_path: Path, bug: str) -> None:
    """With the planted bug it does."""
    with running(tmp_path, "redis", 1, bug=bug) as site:
        first, second = site.servers
        assert "sequencer" in ask(second, "POST", ttl=60, id=HOLDER)
        waiting = sent(first, "POST", ttl=60, id=WAITER, wait=30)
        wait_until(lambda: ask(second, "GET")["waiting"] == 1, "it waits")
        first.pause()
        waiting.close()
        with closing(sent(second, "POST", ttl=60, id=WAITER, wait=30)) as again:
            for _ in range(
                LOOKS
            ):  # so its Acquire is at the store, and the notification comes here
                ask(second, "GET")
            ask(second, "DELETE", id=HOLDER)
            token = json.loads(again.getresponse().read())["sequencer"]
        first.resume()
        found = [ask(first, "GET").get("sequencer") for _ in range(LOOKS)]
        assert set(found) <= {token, None}
        assert (found[-1] is None) == bool(bug)
