"""Servers at a service's URL that are none, or that speak another format."""

from contextlib import closing

import click
import pytest

from dibs.cli.service import Remote, Tail
from dibs.errors import (
    BackendUnavailable,
    DibsError,
    Forbidden,
    IncompatibleVersion,
    NotConfigured,
)
from tests.server.world import LONG
from tests.servers.waiting import wait_until
from tests.stores.http.peers import Peer, answer, problem, stream

PAGE = b"<html><body>hello\n\nworld</body></html>\n"

FOREIGN = [
    (answer(200, PAGE, kind="text/html", server=None), NotConfigured, "is no Dibs service"),
    (answer(200, b"{}", server=None), NotConfigured, "is no Dibs service"),
    (answer(404, b'{"detail": "x"}', server=None), NotConfigured, "is no Dibs service"),
    (answer(302, server=None, location="https://x"), NotConfigured, "redirects to https://x"),
    (answer(502, server=None), BackendUnavailable, "a proxy in front of the service answered 502"),
    (answer(200, b"{}", dibs_format="9"), IncompatibleVersion, "speaks format 9"),
]

REFUSALS = [
    (problem(401), Forbidden, "does not accept the API key from the URL: so it is; "),
    (problem(403), Forbidden, "so it is"),
    (problem(404), NotConfigured, "is the path in the URL right, and is the service of this"),
    (problem(405), NotConfigured, "is the path in the URL right, and is the service of this"),
    (problem(503), BackendUnavailable, "so it is"),
]
"""What the service itself says, whatever asks it."""

CLOSING = stream().replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
BYE = b"event: bye\ndata: {}\n\n"


def test_another_server_where_the_stream_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.stores.http.stream.SPREAD", 0.01)
    said = [CLOSING + BYE, answer(502, server=None), answer(200, PAGE, server=None)]
    with (
        Peer(lambda path, body: said.pop(0)) as peer,
        closing(Tail(peer.url, "/events")) as tail,
    ):
        assert "hello" in str(tail.take(LONG))
        peer.hang_up()
        with pytest.raises(NotConfigured, match="is no Dibs service"):
            while True:
                tail.take(0.2)
        assert not said


def test_a_stream_that_breaks_off_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dibs.stores.http.stream.SPREAD", 0.01)
    head, _, body = stream().partition(b"\r\n\r\n")
    head += b"\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    said = [head + b"%x\r\n%b\r\n40\r\nhalf" % (len(body), body), answer(200, PAGE, server=None)]
    with (
        Peer(lambda path, body: said.pop(0)) as peer,
        closing(Tail(peer.url, "/events")) as tail,
    ):
        assert "hello" in str(tail.take(LONG))
        peer.hang_up()
        lost = tail.take(LONG)
        assert lost is not None
        assert lost.kind == "lost"
        assert "the service closed the connection" in lost.data


@pytest.mark.parametrize("said", [stream(), CLOSING + BYE], ids=["stands", "between two tries"])
def test_a_closed_stream_closes_its_connection(said: bytes) -> None:
    with Peer(lambda path, body: said) as peer:
        with closing(Tail(peer.url, "/events")) as tail:
            assert "hello" in str(tail.take(LONG))
        wait_until(peer.is_alone, "the end of the connection")
        assert len(peer.asked) == 1


@pytest.mark.parametrize(("reply", "kind", "message"), FOREIGN + REFUSALS)
def test_answers_of_other_servers_and_refusals(
    reply: bytes, kind: type[DibsError], message: str
) -> None:
    with Peer(lambda path, body: reply) as peer:
        with pytest.raises(kind, match=message) as asked:
            Remote(peer.url).ask("GET", "/v1/restrict/")
        with closing(Tail(peer.url, "/events")) as tail, pytest.raises(kind, match=message) as read:
            tail.take(LONG)
    assert "secret" not in f"{asked.value} {read.value}"


def test_answers_that_make_no_sense() -> None:
    with Peer(lambda path, body: answer(200, PAGE)) as peer:
        with pytest.raises(BackendUnavailable, match="can't be read"):
            Remote(peer.url).ask("GET", "/v1/restrict/")
    with Peer(lambda path, body: answer(400, b'{"detail": "too long"}')) as peer:
        with pytest.raises(click.UsageError, match="too long"):
            Remote(peer.url).ask("GET", "/v1/restrict/")
