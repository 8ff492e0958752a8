"""Keys: who is let in, for what, and for how long."""

import asyncio
import hmac
import json
import timeit
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import BackendUnavailable
from dibs.server.auth import key_cache
from dibs.server.auth import keys as keys_module
from dibs.server.auth.api_key import KIND, read_key
from dibs.server.auth.keys import KEPT, KeyService, Unauthenticated, UnknownKey
from dibs.server.auth.policy import Principal, Scope
from dibs.server.records import records_for
from dibs.server.records.port import Record, Records
from dibs.testing import ManualClock

EVERY = frozenset(Scope)

REFRESH = key_cache.REFRESH


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers look at the records more often, so that nobody has to wait a second for it."""
    monkeypatch.setattr(key_cache, "REFRESH", 0.05)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def records(tmp_path: Path) -> AsyncIterator[Records]:
    records = records_for(f"sqlite:///{tmp_path}/records.db")
    await records.open()
    yield records
    await records.close()


@pytest.fixture
async def rings(records: Records, clock: ManualClock) -> AsyncIterator[list[KeyService]]:
    """Those of two servers of one service."""
    rings = [KeyService(records, clock), KeyService(records, clock)]
    for ring in rings:
        await ring.cache.load()
    yield rings
    for ring in rings:
        await ring.cache.close()


@pytest.fixture
def ring(rings: list[KeyService]) -> KeyService:
    return rings[0]


def bearer(text: str) -> str:
    return f"Bearer {text}"


def refusal(ring: KeyService, header: str | None) -> str:
    with pytest.raises(Unauthenticated) as caught:
        ring.authenticate(header)
    assert str(caught.value)
    return caught.value.reason


# ---- who is let in --------------------------------------------------------------------------------


async def test_a_key_lets_its_owner_in(ring: KeyService) -> None:
    principal, text = await ring.create("ci", {Scope.ACQUIRE}, [b"shop/"])
    assert principal == Principal(
        principal.key_id, "ci", frozenset({Scope.READ, Scope.ACQUIRE}), (b"shop/",)
    )
    for header in (bearer(text), f"bearer {text}", f"BEARER  {text} "):
        assert ring.authenticate(header) == principal
    assert ring.owner_of(text) == principal
    assert ring.principal(principal.key_id) == principal


async def test_a_text_has_128_random_bits_and_names_its_key(ring: KeyService) -> None:
    made = [await ring.create("ci", {Scope.READ}, []) for _ in range(20)]
    texts = {text for _, text in made}
    assert len(texts) == 20
    for principal, text in made:
        mark, key_id, bits = text.split("_", 2)
        assert (mark, key_id, len(bits)) == ("dibs", principal.key_id, 22)


async def test_what_lies_in_the_records_lets_nobody_in(ring: KeyService, records: Records) -> None:
    principal, text = await ring.create("ci", {Scope.READ}, [])
    (record,) = await records.all("key")
    assert text.split("_", 2)[2].encode() not in record.value
    digest = ring.key(principal.key_id).digest
    for guess in (digest.hex(), f"dibs_{principal.key_id}_{digest.hex()[:22]}"):
        assert refusal(ring, bearer(guess)) in ("unknown", "malformed")


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (None, "missing"),
        ("", "missing"),
        ("Bearer", "malformed"),
        ("Bearer ", "malformed"),
        ("Basic dXNlcjpwYXNz", "malformed"),
        ("dibs_000000000000_0123456789012345678901", "malformed"),
        ("Bearer nonsense", "malformed"),
        ("Bearer \xff\xfe", "malformed"),
        ("Bearer dibs_", "unknown"),
        ("Bearer dibs_000000000000_0123456789012345678901", "unknown"),
        ("Bearer dibs_000000000000_0123456789012345678901x", "unknown"),
        ("Bearer a.b.c", "unknown"),
    ],
)
async def test_nobody_else_is_let_in(ring: KeyService, header: str | None, reason: str) -> None:
    await ring.create("ci", {Scope.READ}, [])
    assert refusal(ring, header) == reason


async def test_a_key_with_any_letter_changed_is_no_key(ring: KeyService) -> None:
    _, text = await ring.create("ci", {Scope.READ}, [])
    for at in range(len(text)):
        other = "A" if text[at] != "A" else "B"
        assert refusal(ring, bearer(text[:at] + other + text[at + 1 :])) in ("unknown", "malformed")
    for cut in (text[:-1], text + "A", text.upper()):
        assert refusal(ring, bearer(cut)) in ("unknown", "malformed")


async def test_an_unknown_id_is_compared_like_a_known_one(
    ring: KeyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def watched(a: Any, b: Any) -> bool:
        compared.append((a, b))
        return hmac.compare_digest(a, b)

    monkeypatch.setattr(keys_module, "compare_digest", watched)
    _, text = await ring.create("ci", {Scope.READ}, [])
    refusal(ring, bearer("dibs_000000000000_" + text.split("_", 2)[2]))
    refusal(ring, bearer(text[:-1] + ("A" if text[-1] != "A" else "Q")))
    ring.authenticate(bearer(text))
    assert [(len(a), len(b)) for a, b in compared] == [(32, 32)] * 3


async def test_it_is_fast(ring: KeyService) -> None:
    """A dict lookup and a hash. The bound is ten times what it takes, for a machine under load."""
    principal, text = await ring.create("ci", {Scope.READ}, [])
    for header in (bearer(text), bearer(ring.token(principal))):
        times = timeit.repeat(partial(ring.authenticate, header), number=500, repeat=9)
        assert min(times) / 500 < 20e-6


# ---- for what -------------------------------------------------------------------------------------


async def test_scopes_imply_each_other_and_directories_bound_them(ring: KeyService) -> None:
    principal, _ = await ring.create("a", {Scope.FORCE}, [b"b/", b"a/", b"a/x/"])
    assert principal.scopes == {Scope.READ, Scope.FORCE}
    assert principal.prefixes == (b"a/", b"b/")
    for name, is_in in ((b"a/x", True), (b"a/", True), (b"b/\xff", True), (b"a", False)):
        assert principal.may(Scope.READ, name) is is_in
    for name in (b"c/x", b"A/x", b"ab/", b"", b"/a/x", b"./a/x"):
        assert not principal.may(Scope.FORCE, name)
    assert not principal.may(Scope.ACQUIRE, b"a/x")
    assert not principal.may_everywhere(Scope.READ)


async def test_a_key_without_directories_is_good_for_everything(ring: KeyService) -> None:
    principal, _ = await ring.create("a", {Scope.ADMIN}, [])
    assert principal.scopes == EVERY
    assert principal.may_everywhere(Scope.ADMIN)


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb", " a", "\x1b[31m"])
async def test_a_nonsense_name_is_refused(ring: KeyService, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        await ring.create(name, {Scope.READ}, [])
    assert ring.list() == []


async def test_a_key_for_nothing_is_refused(ring: KeyService) -> None:
    with pytest.raises(ValueError, match="scope"):
        await ring.create("a", set(), [])


# ---- for how long ---------------------------------------------------------------------------------


async def test_a_revoked_key_is_told_so(ring: KeyService) -> None:
    principal, text = await ring.create("ci", {Scope.READ}, [])
    revoked = await ring.revoke(principal.key_id)
    assert revoked.revoked is not None
    assert refusal(ring, bearer(text)) == "revoked"
    assert refusal(ring, bearer(text[:-1] + ("A" if text[-1] != "A" else "Q"))) == "unknown"
    with pytest.raises(Unauthenticated, match="revoked"):
        ring.principal(principal.key_id)
    assert await ring.revoke(principal.key_id) == revoked
    assert ring.living() == []


async def test_a_key_expires(ring: KeyService, clock: ManualClock) -> None:
    _, text = await ring.create("ci", {Scope.READ}, [], expires_in=60)
    clock.advance(59)
    ring.authenticate(bearer(text))
    clock.advance(1)
    assert refusal(ring, bearer(text)) == "expired"
    assert ring.living() == []


async def test_there_is_no_revoking_what_is_not_there(ring: KeyService) -> None:
    for key_id in ("", "nothing", "\0", "x" * 5000):
        with pytest.raises(UnknownKey):
            await ring.revoke(key_id)


async def test_keys_that_ended_long_ago_are_forgotten(
    ring: KeyService, records: Records, clock: ManualClock
) -> None:
    revoked, _ = await ring.create("revoked", {Scope.READ}, [])
    await ring.create("expired", {Scope.READ}, [], expires_in=1)
    await ring.create("good", {Scope.READ}, [])
    await ring.revoke(revoked.key_id)
    clock.advance(KEPT - 10)
    await ring.create("new", {Scope.READ}, [])
    assert len(ring.list()) == 4
    clock.advance(20)
    await ring.create("newest", {Scope.READ}, [])
    assert [key.principal.name for key in ring.list()] == ["good", "new", "newest"]
    assert len(await records.all("key")) == 3


# ---- several servers ------------------------------------------------------------------------------


async def test_another_server_learns_of_a_key_when_it_is_brought(rings: list[KeyService]) -> None:
    here, there = rings
    await there.cache.refresh()
    principal, text = await here.create("ci", {Scope.READ}, [])
    assert refusal(there, bearer(text)) == "unknown"
    assert await there.admit(bearer(text)) == principal
    assert there.authenticate(bearer(text)) == principal


async def test_unknown_keys_make_nobody_read_the_records_all_the_time(
    rings: list[KeyService], records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ring in rings:
        await ring.cache.close()  # they look when they have to
    asked = 0
    plain = records.revision

    async def counted() -> int:
        nonlocal asked
        asked += 1
        return await plain()

    async def bring_one() -> None:
        with pytest.raises(Unauthenticated, match="unknown API key"):
            await rings[0].admit("Bearer dibs_000000000000_0123456789012345678901")

    monkeypatch.setattr(records, "revision", counted)
    await asyncio.gather(*(bring_one() for _ in range(200)))
    assert asked == 1
    await bring_one()
    assert asked == 2
    await rings[0].cache.close()


async def test_whoever_leaves_while_a_key_is_looked_for_harms_no_other(
    rings: list[KeyService],
) -> None:
    here, there = rings
    principal, text = await here.create("ci", {Scope.READ}, [])
    asking = [asyncio.create_task(there.admit(bearer(text))) for _ in range(3)]
    await asyncio.sleep(0)
    asking[0].cancel()
    assert await asking[1] == await asking[2] == principal
    await asyncio.gather(asking[0], return_exceptions=True)


async def test_a_revocation_reaches_all_servers_within_two_seconds(rings: list[KeyService]) -> None:
    here, there = rings
    principal, text = await here.create("ci", {Scope.READ}, [])
    await there.cache.refresh()
    token = there.token(principal)
    ended = asyncio.Event()
    there.cache.watch(principal.key_id, ended.set)
    there.authenticate(bearer(text))
    await here.revoke(principal.key_id)
    await asyncio.wait_for(ended.wait(), 30)
    assert refusal(there, bearer(text)) == refusal(there, bearer(token)) == "revoked"
    assert REFRESH <= 1


async def test_whoever_watches_is_told_once_and_can_take_it_back(rings: list[KeyService]) -> None:
    ring = rings[0]
    principal, _ = await ring.create("ci", {Scope.READ}, [])
    told: list[str] = []
    ring.cache.watch(principal.key_id, lambda: told.append("kept"))
    forget = ring.cache.watch(principal.key_id, lambda: told.append("forgotten"))
    forget()
    forget()
    await ring.cache.refresh()
    assert told == []
    await ring.revoke(principal.key_id)
    await rings[1].cache.refresh()
    await ring.cache.refresh()
    assert told == ["kept"]


async def test_whoever_watches_is_told_of_an_expiry(ring: KeyService, clock: ManualClock) -> None:
    principal, _ = await ring.create("ci", {Scope.READ}, [], expires_in=60)
    ended = asyncio.Event()
    ring.cache.watch(principal.key_id, ended.set)
    clock.advance(61)
    await asyncio.wait_for(ended.wait(), 30)


async def test_servers_that_revoke_one_key_at_once_both_do(rings: list[KeyService]) -> None:
    principal, _ = await rings[0].create("ci", {Scope.READ}, [])
    await asyncio.gather(*(ring.revoke(principal.key_id) for ring in rings))
    for ring in rings:
        await ring.cache.refresh()
        assert ring.key(principal.key_id).revoked is not None


async def test_keys_are_as_they_were_known_while_the_records_are_away(
    rings: list[KeyService],
    records: Records,
    monkeypatch: pytest.MonkeyPatch,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ring = rings[0]
    _, text = await ring.create("ci", {Scope.READ}, [])
    asked = asyncio.Queue[None]()

    async def away(*_: object) -> Any:
        asked.put_nowait(None)
        raise BackendUnavailable("away")

    for name in ("revision", "all", "get"):
        monkeypatch.setattr(records, name, away)
    for _ in range(5):
        await asyncio.wait_for(asked.get(), 30)
    ring.authenticate(bearer(text))
    clock.advance(5)
    assert ring.cache.stale_for >= 5
    with pytest.raises(Unauthenticated, match="unknown API key"):
        await ring.admit("Bearer dibs_000000000000_0123456789012345678901")
    complaints = [each for each in caplog.records if "can't be looked up" in each.message]
    assert len(complaints) == len(rings)


async def test_after_an_outage_everything_is_read_again(
    rings: list[KeyService], records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover may have lost a change and counted another in its place."""
    here, there = rings
    principal, _ = await here.create("ci", {Scope.READ}, [])
    for ring in rings:
        await ring.cache.close()  # they look when they are told to
        await ring.cache.refresh()
    revision = await records.revision()

    async def away() -> int:
        raise BackendUnavailable("away")

    async def as_before() -> int:
        return revision

    with monkeypatch.context() as patch:
        patch.setattr(records, "revision", away)
        with pytest.raises(BackendUnavailable):
            await there.cache.refresh()
    await here.revoke(principal.key_id)
    monkeypatch.setattr(records, "revision", as_before)
    await there.cache.refresh()
    assert there.living() == []


# ---- the first key, and the service's secret ------------------------------------------------------


async def test_the_first_key_is_made_once(records: Records, clock: ManualClock) -> None:
    rings = [KeyService(records, clock) for _ in range(5)]
    for ring in rings:
        await ring.cache.load()
    made = [each for each in await asyncio.gather(*(r.first("first") for r in rings)) if each]
    assert len(made) == 1
    principal, text = made[0]
    assert principal.may_everywhere(Scope.ADMIN)
    for ring in rings:
        await ring.cache.refresh()
        assert ring.authenticate(bearer(text)) == principal
        assert await ring.first("first") is None
        await ring.cache.close()


async def test_there_is_another_first_key_when_all_have_ended(ring: KeyService) -> None:
    made = await ring.first("first")
    assert made is not None
    await ring.revoke(made[0].key_id)
    again = await ring.first("first")
    assert again is not None
    assert again[0].key_id != made[0].key_id


# ---- garbage --------------------------------------------------------------------------------------


def written(
    *,
    format: int = 1,  # noqa: A002
    key_id: str = "broken",
    scopes: Sequence[str] = ("admin",),
    prefixes: Sequence[str] = ("",),
    digest: str = "A" * 43 + "=",
) -> bytes:
    """The record of a key."""
    principal = {"key_id": key_id, "name": "x", "scopes": scopes, "prefixes": prefixes}
    key = {"principal": principal, "digest": digest, "created": 0, "by": ""}
    return json.dumps({"format": format, "key": key}).encode()


def test_a_scope_implies_others_in_a_record_too() -> None:
    key = read_key(Record(KIND, "broken", written(), 7))
    assert key.principal == Principal("broken", "x", EVERY, (b"",))
    assert key.version == 7


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"null",
        b"\xff\xfe",
        written(format=2),
        written(scopes=["god"]),
        written(prefixes=[]),
        written(prefixes=["YQ=="]),
        written(key_id="another"),
        written(digest="AA=="),
        written()[:-1],
    ],
)
async def test_a_record_that_cant_be_read_lets_nobody_in_and_harms_no_other(
    rings: Sequence[KeyService], records: Records, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    _, text = await rings[0].create("ci", {Scope.READ}, [])
    await records.put("key", "broken", value, 0)
    for ring in rings:
        for _ in range(2):
            await ring.cache.refresh()
        ring.authenticate(bearer(text))
        assert [key.principal.name for key in ring.list()] == ["ci"]
        with pytest.raises(UnknownKey):
            await ring.revoke("broken")
    assert len([each for each in caplog.records if "can't be read" in each.message]) == len(rings)


async def test_what_is_written_can_be_read_again(ring: KeyService, records: Records) -> None:
    await ring.create("ci", {Scope.ACQUIRE}, [b"\xff\x00/", b"shop/"], expires_in=60, by="ops")
    (record,) = await records.all("key")
    again = Record("key", record.name, record.value, record.version)
    assert read_key(again) == ring.list()[0]


async def test_keys_that_a_newer_release_has_written_are_not_called_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    records = records_for("memory://newer")
    await records.open()
    ring = KeyService(records)
    await ring.cache.load()
    await ring.create("a", {Scope.ADMIN}, ())
    (record,) = await records.all(KIND)
    newer = record.value.replace(b'"format":1', b'"format":2')
    assert newer != record.value
    await records.put(KIND, record.name, newer, record.version)
    await ring.cache.refresh()
    assert "none of the keys in the records can be read" in caplog.text
    assert "run that one" in caplog.text
    assert "gone" not in caplog.text
    await ring.cache.close()
    await records.close()
