"""The command line's own end of a stream: it goes on after a gap, however long."""

import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest

from dibs.cli.service import Tail
from tests.server.world import LONG, World, b64
from tests.servers.certificates import self_signed
from tests.stores.http.serving import Served

TRIES = 4
"""So often nobody is there, which is more than once."""


def until(tail: Tail, kind: str) -> None:
    """Take what comes until it is that. Raises what ends the stream for good."""
    while True:
        told = tail.take(LONG)
        assert told is not None, "the stream is silent"
        if told.kind == kind:
            return


def _refuse(nobody: socket.socket) -> None:
    for _ in range(TRIES):
        nobody.accept()[0].close()


@pytest.mark.once
@pytest.mark.serial  # it takes a port that was given back, twice
@pytest.mark.parametrize(
    ("path", "first"), [("/events", "hello"), (f"/watch/locks/{b64('x')}", "status")]
)
def test_it_stands_again_after_the_service_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, first: str
) -> None:
    monkeypatch.setattr("dibs.stores.http.stream.MOST_SPREAD", 0.05)
    world = World.over(tmp_path)
    monkeypatch.setenv("DIBS_API_KEY", world.admin_key)
    port = int(world.url.rpartition(":")[2])
    with closing(Tail(world.url, path)) as tail:
        until(tail, first)
        world.close()
        with socket.create_server(("127.0.0.1", port)) as nobody:
            nobody.settimeout(LONG)
            refusing = threading.Thread(target=_refuse, args=(nobody,))
            refusing.start()
            while refusing.is_alive():
                tail.take(0.05)
        again = World.over(tmp_path, listen=f"127.0.0.1:{port}")
        until(tail, first)
    again.close()


@pytest.mark.once
def test_over_tls_it_takes_no_longer_than_asked(tmp_path: Path) -> None:
    served = Served(certificate=self_signed(tmp_path / "tls" / "server.pem"))
    try:
        with closing(Tail(served.url, "/events")) as tail:
            until(tail, "hello")
            assert tail.take(0.05) is None
    finally:
        served.close()
