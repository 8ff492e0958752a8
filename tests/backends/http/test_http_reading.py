"""Answers and events are the same in whatever pieces they come."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.backends.http.events import MAX_EVENT, Events
from dibs.backends.http.reading import MAX_HEAD, Answer, NotHttp, Reader

TWO = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-A: b\r\n\r\nabc"
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    b"2\r\nde\r\n1\r\nf\r\n0\r\n\r\n"
)
EVENTS = (
    "event: hello\ndata: {}\r\n\n: still here\n\ndata: é\ndata:b\nid: 7\n\nevent: x\n\n".encode()
)


def cuts(data: bytes) -> st.SearchStrategy[list[bytes]]:
    """That data in pieces."""
    where = st.lists(st.integers(0, len(data)), max_size=8).map(
        lambda at: [0, *sorted(at), len(data)]
    )
    return where.map(lambda at: [data[a:b] for a, b in itertools.pairwise(at)])


@given(cuts(TWO))
def test_answers_in_pieces(pieces: list[bytes]) -> None:
    reader = Reader()
    found = [answer for piece in pieces for answer in reader.feed(piece)]
    assert found == [
        Answer(200, {"content-length": "3", "x-a": "b"}, b"abc", True),
        Answer(503, {"transfer-encoding": "chunked", "connection": "close"}, b"def", False),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"HTTP/1.1 200 OK\r\n" + b"a: " + b"b" * MAX_HEAD + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_what_is_no_http(data: bytes) -> None:
    with pytest.raises(NotHttp):
        Reader().feed(data)


def test_a_body_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.backends.http.reading.MAX_BODY", 10)
    reader = Reader()
    reader.feed(b"HTTP/1.1 200 OK\r\n\r\n0123456789")
    with pytest.raises(NotHttp, match="too large"):
        reader.feed(b"x")


def test_who_takes_the_pieces_gets_them() -> None:
    reader, taken, heads = Reader(), list[bytes](), list[int]()

    def heed(answer: Answer) -> object:
        heads.append(answer.status)
        return taken.append

    reader.heed = heed  # type: ignore[assignment]
    assert reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n") == []
    reader.feed(b"1\r\nf\r\n")
    assert (heads, taken) == ([200], [b"de", b"f"])


@given(cuts(EVENTS))
def test_events_in_pieces(pieces: list[bytes]) -> None:
    events = Events()
    found = [event for piece in pieces for event in events.feed(piece)]
    assert found == [("hello", "{}"), ("message", "é\nb")]


@given(cuts(b"id: a-1\ndata: x\n\nid: a-2\n: alive\n\nid: a-3\ndata: cut o"))
def test_where_to_go_on_is_after_what_was_whole(pieces: list[bytes]) -> None:
    events = Events()
    found = [event for piece in pieces for event in events.feed(piece)]
    assert (found, events.last_id) == ([("message", "x")], "a-2")


def test_an_event_without_end_is_not_kept() -> None:
    with pytest.raises(ValueError, match="too large"):
        Events().feed(b"x" * (MAX_EVENT + 1))
