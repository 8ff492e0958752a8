"""Whoever answers at a service's URL, and is none, or is one that speaks what we don't."""

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

STRANGERS = [
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


@pytest.mark.parametrize(("said", "kind", "told"), STRANGERS + REFUSALS)
def test_a_stream_of_a_stranger_s(said: bytes, kind: type[DibsError], told: str) -> None:
    with Peer(lambda path, body: said) as peer:
        with (
            closing(Tail(peer.url, "/events")) as tail,
            pytest.raises(kind, match=told) as raised,
        ):
            tail.take(LONG)
    assert "secret" not in str(raised.value)


def test_a_stranger_where_the_stream_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.stores.http.stream.SPREAD", 0.01)
    said = [CLOSING + BYE, answer(502, server=None), answer(200, PAGE, server=None)]
    with (
        Peer(lambda path, body: said.pop(0)) as peer,
        closing(Tail(peer.url, "/events")) as tail,
    ):
        hello = tail.take(LONG)
        assert hello is not None
        assert hello.kind == "hello"
        with pytest.raises(NotConfigured, match="is no Dibs service"):
            while True:
                tail.take(LONG)
        assert not said


def test_a_stream_that_ends_in_the_midst_is_told_in_our_words(
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
        told = tail.take(LONG)
        assert told is not None
        assert told.kind == "lost"
        assert "the service closed the connection" in told.data


@pytest.mark.parametrize("said", [stream(), CLOSING + BYE], ids=["stands", "between two tries"])
def test_a_stream_that_was_closed_is_let_go_of(said: bytes) -> None:
    with Peer(lambda path, body: said) as peer:
        with closing(Tail(peer.url, "/events")) as tail:
            assert "hello" in str(tail.take(LONG))
        wait_until(peer.is_alone, "the end of the connection")
        assert len(peer.asked) == 1


@pytest.mark.parametrize(("said", "kind", "told"), STRANGERS + REFUSALS)
def test_a_question_to_a_stranger(said: bytes, kind: type[DibsError], told: str) -> None:
    with (
        Peer(lambda path, body: said) as peer,
        pytest.raises(kind, match=told) as raised,
    ):
        Remote(peer.url).ask("GET", "/v1/restrict/")
    assert "secret" not in str(raised.value)


def test_a_service_whose_answer_makes_no_sense() -> None:
    with (
        Peer(lambda path, body: answer(200, PAGE)) as peer,
        pytest.raises(BackendUnavailable, match="can't be read"),
    ):
        Remote(peer.url).ask("GET", "/v1/restrict/")


def test_a_service_that_can_t_read_what_is_asked() -> None:
    with (
        Peer(lambda path, body: answer(400, b'{"detail": "too long"}')) as peer,
        pytest.raises(click.UsageError, match="too long"),
    ):
        Remote(peer.url).ask("GET", "/v1/restrict/")
