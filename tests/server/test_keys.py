"""API keys, their tokens, and the secret that signs: who is let in, for what, and for how long."""

import asyncio
import stat
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest

from dibs.cli.app import app
from dibs.errors import BackendUnavailable, NotConfigured
from dibs.server.auth import credentials, key_cache
from dibs.server.auth.credentials import SHORTEST, ServiceSecret, Signatures
from dibs.server.auth.credentials import TOKEN_LEEWAY as LEEWAY
from dibs.server.auth.credentials import TOKEN_LIFETIME as LIFETIME
from dibs.server.auth.keys import KEPT, KeyService, Unauthenticated, UnknownKey
from dibs.server.auth.policy import Scope
from dibs.server.config import ServerConfig, read_config
from dibs.server.records.port import Records
from dibs.testing import ManualClock
from tests.server.world import LONG, Patch, World, away

REFRESH = key_cache.REFRESH


@pytest.fixture(autouse=True)
def fast(monkeypatch: Patch) -> None:
    """Servers look at the records more often, so that nobody has to wait a second for it."""
    monkeypatch.setattr(key_cache, "REFRESH", 0.05)


@pytest.fixture
async def rings(records: Records, clock: ManualClock) -> AsyncIterator[list[KeyService]]:
    rings = [KeyService(records, clock) for _ in range(5)]
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
    return text[:-1] + ("A" if text[-1] != "A" else "Q")


async def test_a_key_has_128_random_bits_kept_as_a_digest(
    ring: KeyService, records: Records
) -> None:
    made = [await ring.create("ci", {Scope.READ}, []) for _ in range(20)]
    secrets = {text.removeprefix(f"dibs_{principal.key_id}_") for principal, text in made}
    assert (len(secrets), {len(each) for each in secrets}) == (20, {22})
    principal, _ = made[0]
    digest = ring.key(principal.key_id).digest.hex()
    for guess in (digest, f"dibs_{principal.key_id}_{digest[:22]}"):
        assert refusal(ring, bearer(guess)) in ("unknown", "malformed")
    stored = b"".join(record.value for record in await records.all("key"))
    assert not [each for each in secrets if each.encode() in stored]


async def test_a_key_expires_or_is_revoked_and_is_forgotten_long_after(
    ring: KeyService, records: Records, clock: ManualClock
) -> None:
    expired, text = await ring.create("expired", {Scope.READ}, [], expires_in=60)
    revoked, other = await ring.create("revoked", {Scope.READ}, [])
    token, ended = ring.token(revoked), asyncio.Event()
    ring.authenticate(bearer(token))
    ring.cache.watch(expired.key_id, ended.set)
    again = [await ring.revoke(revoked.key_id) for _ in range(2)]
    assert again[0] == again[1]
    assert refusal(ring, bearer(other)) == refusal(ring, bearer(token)) == "revoked"
    assert refusal(ring, bearer(altered(other))) == "unknown"
    for key_id in ("", "nothing", "\0", "x" * 5000):
        with pytest.raises(UnknownKey):
            await ring.revoke(key_id)
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


async def test_unknown_keys_make_no_server_read_the_records_all_the_time(
    rings: list[KeyService], records: Records, monkeypatch: Patch
) -> None:
    for ring in rings:
        await ring.cache.close()  # they look when they have to
    asked, plain = list[None](), records.revision

    async def counted() -> int:
        asked.append(None)
        return await plain()

    async def bring_one() -> None:
        with pytest.raises(Unauthenticated, match="unknown API key"):
            await rings[0].admit(bearer("dibs_000000000000_0123456789012345678901"))

    monkeypatch.setattr(records, "revision", counted)
    await asyncio.gather(*(bring_one() for _ in range(200)))
    assert len(asked) == 1
    await bring_one()
    assert len(asked) == 2


async def test_after_an_outage_everything_is_read_again(
    rings: list[KeyService], records: Records, monkeypatch: Patch
) -> None:
    """A failover may have lost a change and counted another in its place."""
    here, there = rings[:2]
    principal, _ = await here.create("ci", {Scope.READ}, [])
    for ring in rings:
        await ring.cache.close()  # they look when they are asked to
    await there.cache.refresh()
    revision = await records.revision()

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


async def test_the_first_key_is_made_once(rings: list[KeyService]) -> None:
    made = [each for each in await asyncio.gather(*(r.first("first") for r in rings)) if each]
    ((principal, text),) = made
    assert principal.may_everywhere(Scope.ADMIN)
    for ring in rings:
        assert await ring.first("first") is None, "also where its key was not read yet"
        await ring.cache.refresh()
        assert ring.authenticate(bearer(text)) == principal
    await rings[0].revoke(principal.key_id)
    assert await rings[0].first("first") is not None, "there is another when all have ended"


async def test_a_record_that_cannot_be_read_is_no_key_and_harms_no_other(
    ring: KeyService, records: Records, caplog: pytest.LogCaptureFixture
) -> None:
    _, text = await ring.create("ci", {Scope.READ}, [])
    good = (await records.all("key"))[0].value
    other = good.replace(b'"format":1', b'"format":2')
    wrong = (b"", b"{}", b"null", b"\xff\xfe", good[:-1], other, good.replace(b"read", b"god"))
    for version, value in enumerate((*wrong, good)):
        await records.put("key", "broken", value, version)
        caplog.clear()
        await ring.cache.refresh()
        ring.authenticate(bearer(text))
        assert [key.principal.name for key in ring.list()] == ["ci"], value
        with pytest.raises(UnknownKey):
            await ring.revoke("broken")
        assert "can't be read" in caplog.text


async def test_a_token_is_its_key_for_a_minute(ring: KeyService, clock: ManualClock) -> None:
    """Another one does not, also if it was signed, as by a server whose clock is wrong."""
    owner, _ = await ring.create("ci", {Scope.READ}, [b"shop/"])
    soon, key = int(clock.stamp() / 1e6) + LIFETIME, owner.key_id

    def signed(*claims: object) -> str:
        return Signatures(ring.secrets, "token").sign(claims)

    assert ring.authenticate(bearer(signed(key, soon))) == owner
    for claims in ((), (key,), (key, "never"), ([key], soon), (key, 1e12, 1), ("nobody", soon)):
        assert refusal(ring, bearer(signed(*claims))) == "unknown", claims
    assert refusal(ring, bearer(signed(key, soon + LEEWAY + 1))) == "expired"
    body, signature = ring.token(owner).split(".")
    later = signed(key, soon + 1).split(".")[0]
    foreign = Signatures(ServiceSecret(["x" * 32]), "token").sign((key, soon))
    for forged in (f"{body}.{altered(signature)}", f"{body}.", f".{signature}", foreign):
        assert refusal(ring, bearer(forged)) == "unknown"
    assert refusal(ring, bearer(f"{later}.{signature}")) == "unknown"
    known, unknown = ring.token(owner), ring.token(owner)
    clock.advance(LIFETIME - 1)
    assert ring.authenticate(bearer(known)) == owner
    clock.advance(1 + LEEWAY)
    await ring.cache.refresh()
    assert refusal(ring, bearer(known)) == refusal(ring, bearer(unknown)) == "expired"


def test_the_secret_lies_beside_the_records_and_is_replaced_while_servers_run(
    tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "leases.db.secret"
    with World.over(tmp_path) as here, World.over(tmp_path) as there:
        (secret,) = file.read_text().split()
        assert (len(secret), stat.S_IMODE(file.stat().st_mode)) == (64, 0o600)
        for each in {*tmp_path.glob("leases.db*")} - {file}:
            found = each.read_bytes()
            assert secret.encode() not in found
            assert bytes.fromhex(secret) not in found

        def statuses(token: str) -> list[int]:
            clients = [world.client(key=token) for world in (here, there)]
            return [client.get("/v1/about").status_code for client in clients]

        before = here.client().post("/v1/token").text
        assert statuses(before) == [200, 200]
        records = f"sqlite:///{tmp_path / 'leases.db'}"
        app.main(["keys", "rotate-secret", "--records", records], "dibs", standalone_mode=False)
        assert "leases.db.secret" in capsys.readouterr().out
        after = there.client(key=here.admin_key).post("/v1/token").text
        assert (statuses(after), statuses(before)[0]) == ([200, 200], 200)
        now = time.time()
        monkeypatch.setattr(credentials, "time", lambda: now + 100)
        for server in (here, there):  # what is remembered ends with its lifetime
            server.server.keys._tokens._verified.clear()
        assert (statuses(after)[1], statuses(before)[1]) == (200, 401)


def test_rotation_needs_a_secret(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("DIBS_URL", "https://locks.example.com")
    monkeypatch.setenv("HOME", str(tmp_path))
    misspelt = ("--records", f"sqlite:///{tmp_path / 'leases.bd'}")
    for options, why in ((misspelt, "has never run"), ((), "names a service")):
        with pytest.raises((NotConfigured, click.UsageError), match=why):
            app.main(["keys", "rotate-secret", *options], "dibs", standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


def test_a_secret_of_the_operator(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    new, old = "n" * SHORTEST, "o" * SHORTEST
    environ = {"DIBS_SERVER_SECRET": f"{new},{old}", "DIBS_SERVER_RECORDS": "redis://x"}
    found = read_config(None, {}, environ).secrets()
    assert found.accepted() == ServiceSecret((new,)).accepted() + ServiceSecret((old,)).accepted()
    with pytest.raises(NotConfigured, match="DIBS_SERVER_SECRET="):
        found.rotate(60)
    with pytest.raises(NotConfigured, match="characters or more"):
        read_config(None, {}, environ | {"DIBS_SERVER_SECRET": "short"}).secrets()
    path = tmp_path / "folder" / "secret"
    with ThreadPoolExecutor(8) as pool:  # servers that start at once
        newest = {*pool.map(lambda _: ServiceSecret(path=path).newest, range(32))}
    assert [each.name for each in path.parent.iterdir()] == ["secret"]
    found = ServerConfig(records="redis://x", secret_file=str(path)).secrets()
    (first,) = newest
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
