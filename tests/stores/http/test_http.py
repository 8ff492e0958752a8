"""What a client and a service send each other, over requests and over a stream."""

import itertools
import pickle
import secrets
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace

from dibs import model
from dibs.errors import BackendUnavailable, DibsError, Forbidden, IncompatibleVersion, NotConfigured
from dibs.model import Failed, Granted, Inspect, Notification, Released, Status
from dibs.server.auth.policy import Scope
from dibs.stores.http import wire
from dibs.stores.http.names import decoded, encoded
from dibs.stores.registry import store_for
from dibs.stores.web.endpoint import IDLE
from dibs.stores.web.reading import MAX_EVENT, Events, Response, ResponseReader
from tests.stores.http.peers import Peer, answer, batch, problem, service, stream
from tests.stores.http.serving import Served
from tests.stores.sides import Side, acquire, both_sides, in_tasks

FORMATS: tuple[Any, ...] = (msgspec.json, msgspec.msgpack)

UNSENT = {"mine", "address"}
"""Fields that stay where they are: the service sets the address itself, and shows nobody a holder's trace."""

VALUES = {bytes: b"\xff", str: "é\0", float: 1.5, int: 2**53, bool: True, tuple[int, ...]: (0, 7)}


def value_of(hint: Any) -> Any:
    """A value of that type, which is no default."""
    hint = getattr(hint, "__value__", hint)
    if hint in VALUES:
        return VALUES[hint]
    first = get_args(hint)[0]
    if get_origin(hint) is tuple:
        return (full(first), full(first))
    return first if get_origin(hint) is Literal else value_of(first)


def full(kind: type) -> Any:
    """A record with a value in each field that is sent."""
    unsent = UNSENT | ({"trace"} if kind in (model.Holder, model.Waiter) else set())
    hints = get_type_hints(kind)
    return kind(**{name: value_of(hints[name]) for name in hints if name not in unsent})


@pytest.mark.parametrize("spoken", FORMATS)
def test_each_field_arrives_as_it_was_sent(spoken: Any) -> None:
    def arrives(sent: Any) -> Any:
        return spoken.decode(spoken.encode(sent), type=type(sent))

    commands = [full(kind) for kind in get_args(model.Command.__value__)]
    batch = arrives(wire.Batch(tuple(map(wire.to_wire, commands))))
    assert [wire.to_model(each) for each in batch.commands] == commands
    replies = [full(kind) for kind in get_args(model.Reply.__value__)]
    answer = arrives(wire.BatchAnswer(tuple(map(wire.to_wire, replies))))
    assert [wire.to_model(each) for each in answer.replies] == replies
    push = full(model.Notification)
    assert wire.notification_to_model(arrives(wire.to_wire(push)), push.inbox) == push


def test_what_one_side_only_knows_is_not_sent() -> None:
    mine = model.Holder("f", "me", 1, 1, (), 0.0, 1.0, address="1.2.3.4", trace="00-1")
    waiter = model.Waiter("g", "you", 1, 0, 0.0, address="1.2.3.5", trace="00-2")
    told = model.Status(b"lock:a", 1, (mine,), (waiter,), mine=(mine,))
    heard = wire.to_model(wire.to_wire(told))
    assert heard.mine == ()
    for entry in (*heard.holders, *heard.waiters):
        assert (entry.address, entry.trace) == ("", "")


@given(st.binary())
def test_a_key_has_one_spelling(raw: bytes) -> None:
    assert decoded(encoded(raw)) == raw
    for key in ("bG9jazphYg==", "bG9jazphYh", "b+9j", "b/9j", "é", "b", "a b="):
        with pytest.raises(ValueError):  # noqa: PT011 -- wherever it fails
            wire.to_model(msgspec.convert({"op": "inspect", "key": key}, wire.Command))


TWO = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-A: b\r\n\r\nabc"
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    b"2\r\nde\r\n1\r\nf\r\n0\r\n\r\n"
)
EVENTS = (
    "event: hello\ndata: {}\r\n\n: still here\n\ndata: é\ndata:b\nid: a-1\n\nevent: x\n\n"
    "id: a-2\n: alive\n\nid: a-3\ndata: cut o"
).encode()


def cuts(data: bytes) -> st.SearchStrategy[list[bytes]]:
    """That data in pieces."""
    where = st.lists(st.integers(0, len(data)), max_size=8).map(
        lambda at: [0, *sorted(at), len(data)]
    )
    return where.map(lambda at: [data[a:b] for a, b in itertools.pairwise(at)])


@given(cuts(TWO))
def test_answers_in_pieces(pieces: list[bytes]) -> None:
    reader = ResponseReader()
    found = [answer for piece in pieces for answer in reader.feed(piece)]
    assert found == [
        Response(200, {"content-length": "3", "x-a": "b"}, b"abc", True),
        Response(503, {"transfer-encoding": "chunked", "connection": "close"}, b"def", False),
    ]


@given(cuts(EVENTS))
def test_events_in_pieces(pieces: list[bytes]) -> None:
    """An event that was cut off is none, and where to go on is after the last whole one."""
    events = Events()
    found = [event for piece in pieces for event in events.feed(piece)]
    assert found == [("hello", "{}"), ("message", "é\nb")]
    assert events.last_id == "a-2"
    with pytest.raises(ValueError, match="too large"):
        events.feed(b"x" * (MAX_EVENT + 1))


GRANTED = Granted(7, (0,), 30.0)
MISSPELT = answer(
    body=msgspec.msgpack.encode({"replies": [{"is": "status", "key": "b?d", "capacity": 1}]})
)


@pytest.mark.parametrize(
    ("said", "kind", "told"),
    [
        (problem(401, "there is no such key"), Forbidden, "there is no such key"),
        (problem(400, "the batch: nonsense"), DibsError, "the batch: nonsense"),
        (answer(500, b"<html>"), BackendUnavailable, "status 500"),
        (problem(503, "soon", retry_after="3"), BackendUnavailable, "soon"),
        (answer(503, server=None, retry_after="soon"), BackendUnavailable, "answered 503"),
        (answer(524, server=None), BackendUnavailable, "answered 524"),
        (answer(501, server=None), NotConfigured, "is no Dibs service"),
        (answer(400, b"hi", server=None), NotConfigured, "want TLS"),
        (batch(GRANTED, dibs_format="2"), IncompatibleVersion, "format 2"),
        (batch(), BackendUnavailable, "0 replies to 1 commands"),
        (batch(GRANTED, GRANTED), BackendUnavailable, "2 replies to 1 commands"),
        (answer(200, b"\xc1"), BackendUnavailable, "can't be read"),
        (MISSPELT, BackendUnavailable, "can't be read"),
        (b"SSH-2.0-OpenSSH_9\r\n", NotConfigured, "is no Dibs service"),
        (None, BackendUnavailable, "hung up"),
    ],
)
@in_tasks
async def test_what_an_answer_means(
    said: bytes | None, kind: type[DibsError], told: str, side: Side
) -> None:
    with Peer(service(batch=said)) as peer:
        connection = await side.open(store_for(peer.url), listen=False)
        with pytest.raises(DibsError) as raised:
            await connection.apply([acquire()])
    error = raised.value
    assert type(error) is type(pickle.loads(pickle.dumps(error))) is kind
    assert told in str(error)
    assert "secret" not in str(error)
    assert f"127.0.0.1:{peer.port}" in str(error)
    assert error.retry_after == (3 if told == "soon" else None)


@both_sides
async def test_a_refused_key_is_looked_for_again(
    side: Side, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIBS_API_KEY", raising=False)
    file = tmp_path / "key"
    with Peer(service(about=problem(401, "send an API key"))) as peer:
        with pytest.raises(Forbidden, match="requires an API key: set DIBS_API_KEY"):
            await side.open(store_for(f"http://127.0.0.1:{peer.port}"))
        assert "authorization" not in peer.heads.pop()
        file.write_text("dibs_old")
        peer.say = service(batch=problem(401, "revoked"))
        backend = await side.open(
            store_for(f"http://127.0.0.1:{peer.port}?key_file={file}"), listen=False
        )
        file.write_text("dibs_new")
        with pytest.raises(Forbidden, match="revoked"):
            await backend.apply([acquire()])
        peer.say = service(batch=batch(GRANTED))
        assert await backend.apply([acquire()]) == [GRANTED]
        sent = [head["authorization"].rpartition(" ")[2] for head in peer.heads]
        assert sent == ["dibs_old", "dibs_old", "dibs_new"]


@both_sides
async def test_one_command_may_fail_and_the_path_may_be_below_another(side: Side) -> None:
    replies: list[model.Reply] = [GRANTED, Failed("forbidden", "no"), Status(b"lock:a", 1)]
    with Peer(service(batch=batch(*replies))) as peer:
        store = store_for(f"{peer.url}/some/where/")
        assert not store.capabilities.asked
        assert store.capabilities.names() <= {"cluster", "host", "process"}
        backend = await side.open(store)
        assert store.capabilities.asked, "what a service promises is known once it was asked"
        assert {"durable", "crash", "notifies", "clock"} <= store.capabilities.names()
        assert list(await backend.apply([acquire(), acquire(), Inspect(b"lock:a")])) == replies
        paths = ["about", "stream", "batch"]
        assert peer.asked == [f"/some/where/v1/{each}" for each in paths]


@both_sides
async def test_a_request_is_in_the_span_of_its_caller(side: Side) -> None:
    """And not in that of whoever has opened the connection."""
    with Peer(service(batch=batch(GRANTED))) as peer:
        with trace.use_span(span(1)):
            backend = await side.open(store_for(peer.url), listen=False)
        with trace.use_span(span(2)):
            await backend.apply([acquire()])
        await backend.apply([acquire()])
        traces = [head["traceparent"] for head in peer.heads[-2:]]
        assert traces == [f"00-{2:032x}-{2:016x}-01", None]


def span(number: int) -> trace.Span:
    flags = trace.TraceFlags(1)
    return trace.NonRecordingSpan(trace.SpanContext(number, number, False, flags))


@both_sides
async def test_a_connection_that_ends_or_was_idle_for_long_is_not_used(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert IDLE < 60  # what many a balancer waits
    with Peer(service(batch=batch(GRANTED, connection="close"))) as peer:
        backend = await side.open(store_for(peer.url), listen=False)
        for _ in range(3):
            await backend.apply([acquire()])
        assert len(peer.links) == 3  # the first was also asked who is there
        peer.say = service(batch=batch(GRANTED))
        for _ in range(2):
            await backend.apply([acquire()])
        assert len(peer.links) == 4
        for module in ("web.links", "http.blocking"):
            monkeypatch.setattr(f"dibs.stores.{module}.IDLE", 0.1)
        await side.pause(0.15)
        await backend.apply([acquire()])
        assert len(peer.links) == 5


# ---- streams -------------------------------------------------------------------------------------


PUSH = Notification(b"lock:a", "print", "", "granted", 7, (0,), 1.5, 5.0)
RELEASED = batch(Released())


def event(kind: str, data: bytes = b"{}") -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def pushed(push: Notification = PUSH) -> bytes:
    return event("notification", msgspec.json.encode(wire.to_wire(push)))


@both_sides
async def test_what_was_pushed_arrives_or_the_client_knows_what_it_missed(side: Side) -> None:
    """A stream that ends comes again as another inbox."""
    strange = event("bye", b"what is this?")
    first = stream(b": hello\n\n", strange, pushed(), inbox="s1.one")
    with Peer(service(stream=first, batch=RELEASED)) as peer:
        backend = await side.open(store_for(peer.url))
        assert await side.pushed(backend, "granted") == replace(PUSH, inbox="s1.one")
        peer.links[-1].sendall(event("recheck"))
        assert "may have been missed" in str(await side.broken(backend))
        assert list(await backend.notifications(0.01)) == []
        assert backend.inbox == "s1.one"  # it goes on
        peer.say = service(stream=stream(pushed(), inbox="s1.two"), batch=RELEASED)
        peer.hang_up()
        assert "hung up" in str(await side.broken(backend))
        assert backend.inbox == "s1.one"  # so that nobody asks every moment meanwhile
        assert (await side.pushed(backend, "granted")).inbox == "s1.two"
        assert backend.inbox == "s1.two"


@both_sides
async def test_a_silent_stream_is_given_up(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.stores.http.stream.SLACK", 0.1)
    with Peer(service(stream=stream(beat=0.1))) as peer:
        backend = await side.open(store_for(peer.url))
        began = time.monotonic()
        for _ in range(4):  # so long it lives, longer than its silence may be
            peer.links[-1].sendall(b": still here\n\n")
            assert list(await backend.notifications(0.15)) == []
        assert "did not answer in time" in str(await side.broken(backend))
        assert time.monotonic() - began >= 0.6


@pytest.mark.parametrize("said", [problem(429, "too many streams"), answer(200, b"hi"), None])
@both_sides
async def test_without_a_stream_all_else_goes_on(
    said: bytes | None, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing depends on pushes, least of all a renewal."""
    monkeypatch.setattr("dibs.stores.http.stream.SPREAD", 0.05)
    with Peer(service(stream=said, batch=RELEASED)) as peer:
        backend = await side.open(store_for(peer.url))
        assert backend.inbox.startswith(".")  # so that waiters don't ask every moment
        await backend.apply([acquire(inbox=backend.inbox)])
        for _ in range(3):
            with suppress(BackendUnavailable):  # there is none, still
                assert list(await backend.notifications(0.1)) == []
        assert len(peer.links) < 10
        peer.say = service(stream=stream(pushed(), inbox="s1.x"), batch=RELEASED)
        assert (await side.pushed(backend, "granted")).inbox == "s1.x"
        assert backend.inbox == "s1.x"


@both_sides
async def test_commands_follow_the_stream(side: Side) -> None:
    """A balancer spreads connections over two servers: ours end up where the stream is."""
    with Peer(service(batch=batch(Released(), Released(), server="s2"))) as peer:
        backend = await side.open(store_for(peer.url))
        command = acquire(inbox=backend.inbox)
        links = len(peer.links)
        for _ in range(5):
            await backend.apply([acquire(), command])
        assert len(peer.links) == links + 1  # one more try at once, and none soon after
        peer.say = service(batch=RELEASED)
        await backend.apply([command])
        assert len(peer.links) == links + 1


# ---- a real service ------------------------------------------------------------------------------


@both_sides
async def test_what_does_not_fit_to_its_tls_is_reported(
    served: Served, encrypted: Served, side: Side
) -> None:
    untrusting = encrypted.url.partition("?")[0]
    for url, reason in (
        (untrusting, r"certificate is not trusted.*cafile=ca.pem"),
        (encrypted.url.replace("127.0.0.1", "127.0.0.2"), r"not trusted|refused"),
        (served.url.replace("http:", "https:"), "does this port speak TLS"),
        (untrusting.replace("https:", "http:"), "TLS"),
    ):
        with pytest.raises((BackendUnavailable, NotConfigured), match=reason):
            await side.open(url)


@in_tasks
async def test_what_is_too_large_for_one_request_is_sent_as_several(
    served: Served, side: Side
) -> None:
    backend = await side.open(store_for(served.url), listen=False)
    prefix = b"lock:%b/" % secrets.token_hex(4).encode()
    many = [acquire("m" * 22, prefix + b"%d" % each, note="\1" * 1000) for each in range(500)]
    replies = await backend.apply(many)
    assert [type(reply) for reply in replies] == [Granted] * len(many)


@in_tasks
async def test_a_revoked_key_ends_its_stream(served: Served, side: Side) -> None:
    keys = served.world.server.keys
    who, secret = served.world.do(lambda: keys.create("gone soon", {Scope.ACQUIRE}, ()))
    backend = await side.open(store_for(served.url_with(secret)))
    served.world.do(lambda: keys.revoke(who.key_id))
    await side.broken(backend)
    with pytest.raises(Forbidden, match="revoked"):
        await backend.apply([acquire("a" * 22)])
