"""What a client says arrives at the store as it was said, and so does the answer, in either format."""

import dataclasses
import itertools
import pickle
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dibs
import dibs.sync
from dibs import model
from dibs.errors import (
    BackendUnavailable,
    DibsError,
    Forbidden,
    IncompatibleVersion,
    MissingCapability,
    NotConfigured,
)
from dibs.model import Failed, Granted, Inspect, Released, Status
from dibs.stores.http import wire
from dibs.stores.http.names import decoded, encoded
from dibs.stores.registry import store_for
from dibs.stores.web.endpoint import IDLE
from dibs.stores.web.reading import MAX_EVENT, MAX_HEAD, Events, NotHttp, Response, ResponseReader
from tests.stores.http.peers import Peer, about, answer, batch, problem, service
from tests.stores.sides import Side, acquire, both_sides

COMMANDS = get_args(model.Command.__value__)
REPLIES = get_args(model.Reply.__value__)
FORMATS: tuple[Any, ...] = (msgspec.json, msgspec.msgpack)

UNSENT = {"mine", "address"}
"""Fields that stay where they are: the service sets the address itself, and shows nobody a holder's trace."""

OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    bytes: st.binary(max_size=40),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    float: st.floats(allow_nan=False, allow_infinity=False),
    int: st.integers(-(2**31), 2**63 - 1),
    tuple[int, ...]: st.lists(st.integers(0, 100), max_size=3).map(tuple),
}


def sent(kind: type) -> list[dataclasses.Field[Any]]:
    unsent = UNSENT | ({"trace"} if kind in (model.Holder, model.Waiter) else set())
    return [each for each in dataclasses.fields(kind) if each.name not in unsent]


def of(kind: type) -> st.SearchStrategy[Any]:
    """A record with any values; of the fields that have a default, some are left at it."""
    hints = get_type_hints(kind)
    fields = {each.name: each for each in sent(kind)}
    required = {
        name: of_type(hints[name])
        for name, each in fields.items()
        if each.default is dataclasses.MISSING
    }
    optional = {name: of_type(hints[name]) for name in fields if name not in required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda given: kind(**given))


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    if hint in OF_TYPE:
        return OF_TYPE[hint]
    if hint == tuple[model.Holder, ...]:
        return st.lists(of(model.Holder), max_size=2).map(tuple)
    if hint == tuple[model.Waiter, ...]:
        return st.lists(of(model.Waiter), max_size=2).map(tuple)
    return st.from_type(hint)


@given(st.lists(st.one_of(*map(of, COMMANDS)), max_size=4))
def test_commands_arrive_as_they_were_said(commands: list[model.Command]) -> None:
    said = wire.Batch(tuple(map(wire.to_wire, commands)))
    for spoken in FORMATS:
        heard = spoken.decode(spoken.encode(said), type=wire.Batch)
        assert [wire.to_model(op) for op in heard.commands] == commands


@given(st.lists(st.one_of(*map(of, REPLIES)), max_size=4))
def test_replies_arrive_as_they_were_given(replies: list[model.Reply]) -> None:
    said = wire.BatchAnswer(tuple(map(wire.to_wire, replies)))
    for spoken in FORMATS:
        heard = spoken.decode(spoken.encode(said), type=wire.BatchAnswer)
        assert [wire.to_model(each) for each in heard.replies] == replies


@given(of(model.Notification))
def test_pushes_arrive_as_they_were_sent(push: model.Notification) -> None:
    said = wire.to_wire(push)
    for spoken in FORMATS:
        heard = spoken.decode(spoken.encode(said), type=wire.Notification)
        assert wire.notification_to_model(heard, push.inbox) == push


def test_what_one_side_only_knows_is_not_sent() -> None:
    mine = model.Holder("f", "me", 1, 1, (), 0.0, 1.0, address="1.2.3.4", trace="00-1")
    waiter = model.Waiter("g", "you", 1, 0, 0.0, address="1.2.3.5", trace="00-2")
    told = model.Status(b"lock:a", 1, (mine,), (waiter,), mine=(mine,))
    heard = wire.to_model(wire.to_wire(told))
    assert heard.mine == ()
    for entry in (*heard.holders, *heard.waiters):
        assert (entry.address, entry.trace) == ("", "")


@pytest.mark.parametrize("spoken", FORMATS)
def test_a_client_does_not_choose_its_address(spoken: Any) -> None:
    said = {"op": "acquire", "key": encoded(b"lock:a"), "id": "i", "owner": "me", "ttl": 1.0}
    for more in ({}, {"address": "1.2.3.4"}):
        heard = spoken.decode(spoken.encode({"commands": [said | more]}), type=wire.Batch)
        assert [wire.to_model(each) for each in heard.commands] == [
            model.Acquire(b"lock:a", "i", "me", 1.0)
        ]


@pytest.mark.parametrize("key", ["bG9jazphYg==", "bG9jazphYh", "b+9j", "b/9j", "é", "b", "a b="])
def test_a_key_has_one_spelling(key: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- wherever it fails
        wire.to_model(msgspec.convert({"op": "inspect", "key": key}, wire.Command))


@given(st.binary())
def test_a_spelling_has_one_key(raw: bytes) -> None:
    assert decoded(encoded(raw)) == raw


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
    reader = ResponseReader()
    found = [answer for piece in pieces for answer in reader.feed(piece)]
    assert found == [
        Response(200, {"content-length": "3", "x-a": "b"}, b"abc", True),
        Response(503, {"transfer-encoding": "chunked", "connection": "close"}, b"def", False),
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
        ResponseReader().feed(data)


def test_a_body_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.stores.web.reading.MAX_BODY", 10)
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\n\r\n0123456789")
    with pytest.raises(NotHttp, match="too large"):
        reader.feed(b"x")


def test_who_takes_the_pieces_gets_them() -> None:
    reader, taken, heads = ResponseReader(), list[bytes](), list[int]()

    def heed(answer: Response) -> object:
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


GRANTED = Granted(7, (0,), 30.0)
MISSPELT = answer(
    body=msgspec.msgpack.encode({"replies": [{"is": "status", "key": "b?d", "capacity": 1}]})
)


async def failure(side: Side, said: bytes | None) -> DibsError:
    """What a batch that is answered so raises."""
    with Peer(service(batch=said)) as peer:
        connection = await side.open(store_for(peer.url), listen=False)
        with pytest.raises(DibsError) as raised:
            await connection.apply([acquire()])
        error = raised.value
        assert "secret" not in str(error)
        assert f"127.0.0.1:{peer.port}" in str(error)
        assert type(pickle.loads(pickle.dumps(error))) is type(error)
        return error


@pytest.mark.parametrize(
    ("said", "kind", "told"),
    [
        (problem(401, "there is no such key"), Forbidden, "there is no such key"),
        (problem(403, "not there"), Forbidden, "not there"),
        (problem(404), NotConfigured, "is the path in the URL right"),
        (problem(503, "the store is away"), BackendUnavailable, "the store is away"),
        (problem(429, "too many"), BackendUnavailable, "too many"),
        (problem(400, "the batch: nonsense"), DibsError, "the batch: nonsense"),
        (answer(500, b"<html>"), BackendUnavailable, "status 500"),
        (
            answer(502, b"<html>", server=None),
            BackendUnavailable,
            "in front of the service answered 502",
        ),
        (answer(200, b"hi", server=None), NotConfigured, "is no Dibs service"),
        (answer(404, b"hi", server=None), NotConfigured, "is no Dibs service"),
        (answer(401, b"hi", server=None), NotConfigured, "is no Dibs service"),
        (answer(400, b"hi", server=None), NotConfigured, "want TLS"),
        (
            answer(308, server=None, location="https://elsewhere/"),
            NotConfigured,
            "redirects to https://elsewhere/",
        ),
        (batch(GRANTED, dibs_format="2"), IncompatibleVersion, "format 2"),
        (batch(), BackendUnavailable, "0 replies to 1 commands"),
        (batch(GRANTED, GRANTED), BackendUnavailable, "2 replies to 1 commands"),
        (answer(200, b"\xc1"), BackendUnavailable, "can't be read"),
        (MISSPELT, BackendUnavailable, "can't be read"),
        (b"SSH-2.0-OpenSSH_9\r\n", NotConfigured, "is no Dibs service"),
        (None, BackendUnavailable, "hung up"),
    ],
)
@both_sides
async def test_what_an_answer_means(
    said: bytes | None, kind: type[DibsError], told: str, side: Side
) -> None:
    error = await failure(side, said)
    assert type(error) is kind
    assert told in str(error)


@both_sides
async def test_when_to_try_again(side: Side) -> None:
    assert (await failure(side, problem(503, retry_after="3"))).retry_after == 3
    assert (await failure(side, answer(503, server=None, retry_after="7"))).retry_after == 7
    assert (await failure(side, answer(503, server=None, retry_after="soon"))).retry_after is None


@both_sides
async def test_a_missing_key_is_asked_for(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIBS_API_KEY", raising=False)

    with Peer(service(about=problem(401, "send an API key"))) as peer:
        with pytest.raises(Forbidden, match="requires an API key: set DIBS_API_KEY"):
            await side.open(store_for(f"http://127.0.0.1:{peer.port}"))
        assert b"authorization" not in peer.heads[0]


@both_sides
async def test_a_refused_key_is_looked_for_again(side: Side, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("dibs_old")

    with Peer(lambda path, body: about()) as peer:
        known = service(batch=problem(401, "revoked"))
        peer.say = known
        store = store_for(f"http://127.0.0.1:{peer.port}?key_file={file}")
        backend = await side.open(store, listen=False)
        file.write_text("dibs_new")
        with pytest.raises(Forbidden, match="revoked"):
            await backend.apply([acquire()])
        peer.say = service(batch=batch(GRANTED))
        assert await backend.apply([acquire()]) == [Granted(7, (0,), 30.0)]
        assert [b"dibs_new" in head for head in peer.heads] == [False, False, True]


@both_sides
async def test_one_command_may_fail(side: Side) -> None:
    said = batch(GRANTED, Failed("forbidden", "no"), Status(b"lock:a", 1))
    with Peer(service(batch=said)) as peer:
        backend = await side.open(store_for(peer.url), listen=False)
        assert list(await backend.apply([acquire(), acquire(), Inspect(b"lock:a")])) == [
            Granted(7, (0,), 30.0),
            Failed("forbidden", "no"),
            Status(b"lock:a", 1),
        ]


@both_sides
async def test_a_path_before_ours(side: Side) -> None:
    with Peer(service(batch=batch(GRANTED))) as peer:
        await side.open(store_for(f"{peer.url}/some/where/"), listen=True)
        assert peer.asked == ["/some/where/v1/about", "/some/where/v1/stream"]


@both_sides
async def test_a_service_that_says_goodbye_is_believed(side: Side) -> None:
    with Peer(service(batch=batch(GRANTED, connection="close"))) as peer:
        backend = await side.open(store_for(peer.url), listen=False)
        for _ in range(3):
            await backend.apply([acquire()])
        assert len(peer.links) == 3  # the first was also asked who is there


@both_sides
async def test_a_connection_that_was_idle_for_long_is_not_used(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert IDLE < 60  # what many a balancer waits
    for module in ("web.links", "http.blocking"):
        monkeypatch.setattr(f"dibs.stores.{module}.IDLE", 0.2)

    with Peer(service(batch=batch(GRANTED))) as peer:
        backend = await side.open(store_for(peer.url), listen=False)
        await backend.apply([acquire()])
        await side.pause(0.25)
        await backend.apply([acquire()])
        assert len(peer.links) == 2


# ---- promises -------------------------------------------------------------------------------------


@both_sides
async def test_nothing_is_promised_before_the_service_was_asked(side: Side) -> None:
    with Peer(service()) as peer:
        store = store_for(peer.url)
        assert not store.capabilities.asked
        assert store.capabilities.names() <= {"cluster", "host", "process"}
        await side.open(store, listen=False)
        assert store.capabilities.asked
        assert {"durable", "crash", "notifies", "clock"} <= store.capabilities.names()


@both_sides
async def test_what_is_required_is_judged_by_the_service_s_word(side: Side) -> None:
    with Peer(service(batch=batch(GRANTED))) as peer:
        api: Any = dibs if side.mode == "async" else dibs.sync
        client = api.connect(peer.url)
        with pytest.raises(MissingCapability, match="power-loss"):
            await side.get(client.lock("a", require={"power-loss"}).acquire())
        lease = await side.get(client.lock("a", require={"durable"}).acquire())
        peer.say = service(batch=batch(Released()))
        await side.get(lease.release())
        await side.get(client.close())
