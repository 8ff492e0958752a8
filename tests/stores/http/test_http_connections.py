"""The way to a real service: keys and scopes, TLS, large batches."""

import secrets

import pytest

import dibs
import dibs.sync
from dibs.errors import BackendUnavailable, Forbidden, NotConfigured
from dibs.model import Failed, Granted, Refused, Revoke
from dibs.server.auth.policy import Scope
from dibs.stores.registry import store_for
from tests.server.inside import keys_of
from tests.stores.http.serving import Served
from tests.stores.sides import Side, acquire, both_sides, release


@pytest.fixture
def key() -> bytes:
    return b"lock:" + secrets.token_hex(4).encode()


@both_sides
async def test_tls(served: Served, encrypted: Served, side: Side, key: bytes) -> None:
    waiter, other = await side.open(encrypted.url), await side.open(encrypted.url)
    await other.apply([acquire("a" * 22, key)])
    await waiter.apply([acquire("b" * 22, key, queue=True, inbox=waiter.inbox)])
    await other.apply([release("a" * 22, key)])
    assert (await side.pushed(waiter, "granted")).key == key
    untrusting = encrypted.url.partition("?")[0]
    for url, reason in (
        (untrusting, r"certificate is not trusted.*cafile=ca.pem"),
        (encrypted.url.replace("127.0.0.1", "127.0.0.2"), r"not trusted|nobody"),
        (served.url.replace("http:", "https:"), "does this port speak TLS"),
        (untrusting.replace("https:", "http:"), "TLS"),
    ):
        with pytest.raises((BackendUnavailable, NotConfigured), match=reason):
            await side.open(url)


@both_sides
async def test_a_key_opens_its_directories_only(served: Served, side: Side) -> None:
    secret = served.world.key("acquire", prefixes=[b"jobs/"])
    backend = await side.open(store_for(served.url_with(secret)))
    admin = await side.open(store_for(served.url))
    await admin.apply([acquire("x" * 22, b"lock:other/a"), acquire("y" * 22, b"lock:jobs/a")])
    replies = await backend.apply(
        [
            acquire("z" * 22, b"lock:other/b"),
            acquire("z" * 22, b"lock:jobs/a"),
            acquire("v" * 22, b"lock:jobs/b"),
            Revoke(b"lock:jobs/a", None, "because"),
        ]
    )
    assert [type(reply) for reply in replies] == [Failed, Refused, Granted, Failed]
    assert "acquire for the directory other/" in replies[0].detail
    assert "force for the directory jobs/" in replies[3].detail
    page = await backend.scan(b"", None, 100)
    assert [status.key for status in page.items] == [b"lock:jobs/a", b"lock:jobs/b"]
    assert [find.told for find in await backend.examine() if find.about == "key"] != []
    for name, key in (("x", b"other/a"), ("y", b"jobs/a"), ("v", b"jobs/b")):
        await admin.apply([release(name * 22, b"lock:" + key)])


@both_sides
async def test_what_is_too_large_for_one_request_is_sent_as_several(
    served: Served, side: Side
) -> None:
    backend = await side.open(store_for(served.url), listen=False)
    ids = [f"{number:022}" for number in range(500)]
    many = [acquire(each, b"lock:much/" + each.encode(), note="\1" * 1000) for each in ids]
    replies = await backend.apply(many)
    assert {type(reply) for reply in replies} == {Granted}
    assert len(replies) == len(many)
    await backend.apply([release(each, b"lock:much/" + each.encode()) for each in ids])


async def test_who_may_not_is_told(served: Served) -> None:
    secret = served.world.key("read", prefixes=[b"jobs/"])
    async with dibs.connect(served.url_with(secret)) as client:
        with pytest.raises(Forbidden, match="scope acquire for the directory jobs/"):
            await client.lock("jobs/a").acquire()
        assert not await client.lock("other/a").locked()
        found = {finding.about: finding for finding in await client.examine()}
    assert "scopes read below jobs/" in found["key"].told
    assert found["encryption"].level == "note"
    assert "Dibs" in found["server"].told


@both_sides
async def test_a_wrong_key(served: Served, side: Side) -> None:
    with pytest.raises(Forbidden, match="from the URL: unknown API key") as raised:
        await side.open(store_for(served.url_with("dibs_no_" + "x" * 22)))
    assert "xxx" not in str(raised.value)


@both_sides
async def test_a_revoked_key_ends_its_stream(served: Served, side: Side) -> None:
    keys = keys_of(served.world)
    who, secret = served.world.do(lambda: keys.create("gone soon", {Scope.ACQUIRE}, ()))
    backend = await side.open(store_for(served.url_with(secret)))
    served.world.do(lambda: keys.revoke(who.key_id))
    await side.broken(backend)
    with pytest.raises(Forbidden, match="revoked"):
        await backend.apply([acquire("a" * 22)])
