"""API keys, their tokens, and the secret that signs: who is let in, for what, and for how long."""

import asyncio
import hmac
import json
import stat
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import httpx2
import pytest

from dibs.cli.app import app
from dibs.errors import BackendUnavailable, NotConfigured
from dibs.server.api.problems import ApiProblem
from dibs.server.auth import credentials, key_cache
from dibs.server.auth import keys as keys_module
from dibs.server.auth import sessions as auth_sessions
from dibs.server.auth.credentials import SHORTEST, ServiceSecret, Signatures
from dibs.server.auth.credentials import TOKEN_LEEWAY as LEEWAY
from dibs.server.auth.credentials import TOKEN_LIFETIME as LIFETIME
from dibs.server.auth.keys import KEPT, KeyService, Unauthenticated, UnknownKey
from dibs.server.auth.policy import Principal, Scope
from dibs.server.auth.sessions import LINK_LIFETIME, Sessions
from dibs.server.config import ServerConfig, read_config
from dibs.server.records import records_for
from dibs.server.records.port import Records
from dibs.testing import ManualClock
from tests.server.inside import keys_of
from tests.server.world import LONG, World

REFRESH = key_cache.REFRESH
NOBODY = "dibs_000000000000_0123456789012345678901"


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
    return caught.value.reason


def altered(text: str) -> str:
    """Another secret for the same key."""
    return text[:-1] + ("A" if text[-1] != "A" else "Q")


# -- who is let in ----------------------------------------------------------------------------------


async def test_a_key_has_128_random_bits_of_which_only_a_digest_is_kept(
    ring: KeyService, records: Records
) -> None:
    made = [await ring.create("ci", {Scope.READ}, []) for _ in range(20)]
    assert len({text for _, text in made}) == 20
    for principal, text in made:
        mark, key_id, bits = text.split("_", 2)
        assert (mark, key_id, len(bits)) == ("dibs", principal.key_id, 22)
        digest = ring.key(key_id).digest.hex()
        for guess in (digest, f"dibs_{key_id}_{digest[:22]}"):
            assert refusal(ring, bearer(guess)) in ("unknown", "malformed")
    stored = b"".join(record.value for record in await records.all("key"))
    assert not [text for _, text in made if text.split("_", 2)[2].encode() in stored]


async def test_an_unknown_id_is_compared_like_a_known_one(
    ring: KeyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []

    def watched(a: Any, b: Any) -> bool:
        compared.append((len(a), len(b)))
        return hmac.compare_digest(a, b)

    monkeypatch.setattr(keys_module, "compare_digest", watched)
    _, text = await ring.create("ci", {Scope.READ}, [])
    refusal(ring, bearer("dibs_000000000000_" + text.split("_", 2)[2]))
    refusal(ring, bearer(altered(text)))
    ring.authenticate(bearer(text))
    assert compared == [(32, 32)] * 3


# -- for how long -----------------------------------------------------------------------------------


async def test_a_revoked_key(ring: KeyService) -> None:
    principal, text = await ring.create("ci", {Scope.READ}, [])
    token = ring.token(principal)
    ring.authenticate(bearer(token))
    revoked = await ring.revoke(principal.key_id)
    assert revoked.revoked is not None
    assert refusal(ring, bearer(text)) == refusal(ring, bearer(token)) == "revoked"
    assert refusal(ring, bearer(altered(text))) == "unknown"
    with pytest.raises(Unauthenticated, match="revoked"):
        ring.principal(principal.key_id)
    assert await ring.revoke(principal.key_id) == revoked
    assert ring.living() == []
    for key_id in ("", "nothing", "\0", "x" * 5000):
        with pytest.raises(UnknownKey):
            await ring.revoke(key_id)


async def test_a_key_expires_and_is_forgotten_long_after(
    ring: KeyService, records: Records, clock: ManualClock
) -> None:
    expired, text = await ring.create("expired", {Scope.READ}, [], expires_in=60)
    revoked, _ = await ring.create("revoked", {Scope.READ}, [])
    ended = asyncio.Event()
    ring.cache.watch(expired.key_id, ended.set)
    await ring.revoke(revoked.key_id)
    clock.advance(59)
    ring.authenticate(bearer(text))
    clock.advance(1)
    assert refusal(ring, bearer(text)) == "expired"
    assert ring.living() == []
    await asyncio.wait_for(ended.wait(), LONG)
    clock.advance(KEPT - 70)
    await ring.create("new", {Scope.READ}, [])
    assert len(ring.list()) == 3
    clock.advance(80)
    await ring.create("newest", {Scope.READ}, [])
    assert [key.principal.name for key in ring.list()] == ["new", "newest"]
    assert len(await records.all("key")) == 2


# -- several servers --------------------------------------------------------------------------------


async def test_unknown_keys_make_no_server_read_the_records_all_the_time(
    rings: list[KeyService], records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ring in rings:
        await ring.cache.close()  # they look when they have to
    asked, plain = list[None](), records.revision

    async def counted() -> int:
        asked.append(None)
        return await plain()

    async def bring_one() -> None:
        with pytest.raises(Unauthenticated, match="unknown API key"):
            await rings[0].admit(bearer(NOBODY))

    monkeypatch.setattr(records, "revision", counted)
    await asyncio.gather(*(bring_one() for _ in range(200)))
    assert len(asked) == 1
    await bring_one()
    assert len(asked) == 2


async def test_a_revocation_reaches_all_servers_within_two_seconds(rings: list[KeyService]) -> None:
    here, there = rings
    principal, text = await here.create("ci", {Scope.READ}, [])
    await there.cache.refresh()
    token, ended, told = there.token(principal), asyncio.Event(), list[str]()
    there.cache.watch(principal.key_id, ended.set)
    there.cache.watch(principal.key_id, lambda: told.append("kept"))
    there.cache.watch(principal.key_id, lambda: told.append("forgotten"))()
    there.authenticate(bearer(text))
    await asyncio.gather(*(ring.revoke(principal.key_id) for ring in rings))  # both do
    await asyncio.wait_for(ended.wait(), LONG)
    await there.cache.refresh()
    assert told == ["kept"]
    assert refusal(there, bearer(text)) == refusal(there, bearer(token)) == "revoked"
    assert REFRESH <= 1


async def test_after_an_outage_everything_is_read_again(
    rings: list[KeyService], records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover may have lost a change and counted another in its place."""
    here, there = rings
    principal, _ = await here.create("ci", {Scope.READ}, [])
    for ring in rings:
        await ring.cache.close()  # they look when they are asked to
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


async def test_the_first_key_is_made_once(records: Records, clock: ManualClock) -> None:
    rings = [KeyService(records, clock) for _ in range(5)]
    for ring in rings:
        await ring.cache.load()
    made = [each for each in await asyncio.gather(*(r.first("first") for r in rings)) if each]
    ((principal, text),) = made
    assert principal.may_everywhere(Scope.ADMIN)
    for ring in rings:
        await ring.cache.refresh()
        assert ring.authenticate(bearer(text)) == principal
        assert await ring.first("first") is None
    await rings[0].revoke(principal.key_id)
    again = await rings[0].first("first")
    assert again is not None, "there is another when all have ended"
    for ring in rings:
        await ring.cache.close()


# -- what lies in the records -----------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"{}", b"null", b"\xff\xfe", written()[:-1], written(format=2)),
        *(written(scopes=["god"]), written(prefixes=[]), written(prefixes=["YQ=="])),
        *(written(key_id="another"), written(digest="AA==")),
    ],
)
async def test_a_record_that_cannot_be_read_is_no_key_and_harms_no_other(
    ring: KeyService, records: Records, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    _, text = await ring.create("ci", {Scope.READ}, [])
    await records.put("key", "broken", value, 0)
    for _ in range(2):
        await ring.cache.refresh()
    ring.authenticate(bearer(text))
    assert [key.principal.name for key in ring.list()] == ["ci"]
    with pytest.raises(UnknownKey):
        await ring.revoke("broken")
    assert "can't be read" in caplog.text


# -- tokens and links -------------------------------------------------------------------------------


@pytest.fixture
async def owner(ring: KeyService) -> Principal:
    return (await ring.create("ci", {Scope.READ}, [b"shop/"]))[0]


def signed(ring: KeyService, *claims: object) -> str:
    """A token as a server of this service would sign it."""
    return Signatures(ring.secrets, "token").sign(claims)


async def test_a_token_stands_for_its_key_for_a_minute(
    ring: KeyService, owner: Principal, clock: ManualClock
) -> None:
    known, unknown = ring.token(owner), ring.token(owner)
    assert ring.authenticate(bearer(known)) == owner
    clock.advance(LIFETIME - 1)
    assert ring.authenticate(bearer(known)) == owner
    clock.advance(1 + LEEWAY)
    await ring.cache.refresh()
    assert refusal(ring, bearer(known)) == refusal(ring, bearer(unknown)) == "expired"


async def test_a_token_that_is_wrong(
    ring: KeyService, owner: Principal, clock: ManualClock
) -> None:
    """Also one that was signed, as by a later release, or by a server whose clock is wrong."""
    soon, key = int(clock.stamp() / 1e6) + LIFETIME, owner.key_id
    assert ring.authenticate(bearer(signed(ring, key, soon))) == owner
    for claims in ((), (key,), (key, "never"), ([key], soon), (key, 1e12, 1), ("nobody", soon)):
        assert refusal(ring, bearer(signed(ring, *claims))) == "unknown", claims
    assert refusal(ring, bearer(signed(ring, key, soon + LEEWAY + 1))) == "expired"
    body, signature = ring.token(owner).split(".")
    later = signed(ring, key, soon + 1).split(".")[0]
    foreign = Signatures(ServiceSecret(["x" * 32]), "token").sign((key, soon))
    for forged in (f"{body}.{altered(signature)}", f"{body}.", f".{signature}", foreign):
        assert refusal(ring, bearer(forged)) == "unknown"
    assert refusal(ring, bearer(f"{later}.{signature}")) == "unknown"
    assert refusal(ring, bearer(body)) == "malformed"


async def test_a_link_works_once_and_not_for_long(
    ring: KeyService, records: Records, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    who, _ = await ring.create("me", {Scope.ADMIN}, [])
    sessions = Sessions(ring, records)
    used, late = sessions.link_for(who.key_id), sessions.link_for(who.key_id)
    await sessions.use_up((await sessions.by_link(used))[1])
    monkeypatch.setattr(auth_sessions, "MOST_ENDED", 10)
    for _ in range(11):  # more sign-outs than are remembered
        await sessions.end(sessions._begin(who).session)
    clock.advance(LINK_LIFETIME - 1)
    await ring.cache.refresh()
    await sessions.by_link(late)
    clock.advance(1)
    await ring.cache.refresh()
    for link in (used, late, "\ud800"):
        with pytest.raises(ApiProblem) as refused:
            await sessions.by_link(link)
        assert refused.value.status == 401


# -- the secret -------------------------------------------------------------------------------------


async def test_the_secret_does_not_lie_in_the_records(tmp_path: Path) -> None:
    with World.over(tmp_path):
        file = tmp_path / "leases.db.secret"
        (secret,) = file.read_text().split()
    assert len(secret) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for each in {*tmp_path.glob("leases.db*")} - {file}:
        found = each.read_bytes()
        assert secret.encode() not in found
        assert bytes.fromhex(secret) not in found


def test_the_secret_is_replaced_while_servers_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with World.over(tmp_path) as here, World.over(tmp_path) as there:
        key = here.admin_key

        def statuses(token: str) -> list[int]:
            headers = {"Authorization": bearer(token)}
            urls = [f"{world.url}/v1/about" for world in (here, there)]
            return [httpx2.get(url, headers=headers).status_code for url in urls]

        before = here.client(key=key).post("/v1/token").text
        assert statuses(before) == [200, 200]
        records = f"sqlite:///{tmp_path / 'leases.db'}"
        app.main(["keys", "rotate-secret", "--records", records], "dibs", standalone_mode=False)
        assert "leases.db.secret" in capsys.readouterr().out
        after = there.client(key=key).post("/v1/token").text
        assert (statuses(after), statuses(before)[0]) == ([200, 200], 200)
        now = time.time()
        monkeypatch.setattr(credentials, "time", lambda: now + 100)
        for server in (here, there):  # what is remembered ends with its lifetime
            keys_of(server)._tokens._verified.clear()
        assert (statuses(after)[1], statuses(before)[1]) == (200, 401)


def test_rotation_replaces_only_a_secret_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_URL", "https://locks.example.com")
    monkeypatch.setenv("HOME", str(tmp_path))
    misspelt = ("--records", f"sqlite:///{tmp_path / 'leases.bd'}")
    for options, why in ((misspelt, "has never run"), ((), "names a service")):
        with pytest.raises((NotConfigured, click.UsageError), match=why):
            app.main(["keys", "rotate-secret", *options], "dibs", standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


def test_servers_that_start_at_once_share_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: ServiceSecret(path=tmp_path / "secret").newest, range(32)))
    assert len(found) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


def test_a_secret_from_the_environment() -> None:
    new, old = "n" * SHORTEST, "o" * SHORTEST
    environ = {"DIBS_SERVER_SECRET": f"{new},{old}", "DIBS_SERVER_RECORDS": "redis://x"}
    found = read_config(None, {}, environ).secrets()
    each = [ServiceSecret((secret,)).accepted() for secret in (new, old)]
    assert found.accepted() == each[0] + each[1]
    with pytest.raises(NotConfigured, match="DIBS_SERVER_SECRET="):
        found.rotate(60)
    with pytest.raises(NotConfigured, match="characters or more"):
        read_config(None, {}, environ | {"DIBS_SERVER_SECRET": "short"}).secrets()


def test_a_secret_in_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "folder" / "secret"
    found = ServerConfig(records="redis://x", secret_file=str(path)).secrets()
    first = found.newest
    for age in (1, 2):
        found.rotate(60)
        assert found.accepted()[age] == first != found.newest
    path.write_text("short\n")
    assert found.accepted(), "what is known stays while it is written"
    with pytest.raises(NotConfigured, match="holds no secrets"):
        ServiceSecret(path=path).accepted()
    path = tmp_path / "leases.db.secret"
    path.write_text("x" * 40)
    path.chmod(0o644)
    World.over(tmp_path).close()
    assert "leases.db.secret has mode 0644" in caplog.text
    path.write_text("short")
    with pytest.raises(NotConfigured, match="holds no secrets"):
        World.over(tmp_path)
