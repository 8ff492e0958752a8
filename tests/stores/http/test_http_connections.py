"""The whole way to a real service: keys and scopes, TLS, forks, loops that end, what doctor says."""

import asyncio
import gc
import os
import secrets
import warnings
from pathlib import Path

import pytest

import dibs
import dibs.sync
from dibs.errors import BackendUnavailable, Forbidden, NotConfigured
from dibs.model import Failed, Granted, Refused, Revoke, Status
from dibs.server.auth.policy import Scope
from dibs.stores.registry import store_for
from dibs.testing.conformance.world import step
from tests.connections import connection_to
from tests.server.inside import keys_of
from tests.stores.http.serving import Served
from tests.stores.redis.both_worlds import Side, acquire, granted, release


@pytest.fixture
def key() -> bytes:
    return b"lock:" + secrets.token_hex(4).encode()


def test_pushes_over_tls(encrypted: Served, side: Side, key: bytes) -> None:
    async def case() -> None:
        url = encrypted.url
        waiter, other = await side.open(store_for(url)), await side.open(store_for(url))
        await other.apply([acquire("a" * 22, key)])
        await waiter.apply([acquire("b" * 22, key, queue=True, inbox=waiter.inbox)])
        await other.apply([release("a" * 22, key)])
        assert (await side.pushed(waiter, "granted")).key == key

    side.run(case)


def test_a_certificate_that_nobody_vouches_for(encrypted: Served, side: Side) -> None:
    async def case() -> None:
        url = encrypted.url.partition("?")[0]
        with pytest.raises(BackendUnavailable, match=r"certificate is not trusted.*cafile=ca.pem"):
            await side.open(store_for(url))

    side.run(case)


def test_a_certificate_of_somebody_else(encrypted: Served, certificate: Path, side: Side) -> None:
    async def case() -> None:
        url = encrypted.url.replace("127.0.0.1", "127.0.0.2")
        with pytest.raises(BackendUnavailable, match=r"not trusted|nobody"):
            await side.open(store_for(url))

    side.run(case)


def test_tls_where_there_is_none(served: Served, side: Side) -> None:
    async def case() -> None:
        with pytest.raises(BackendUnavailable, match="does this port speak TLS"):
            await side.open(store_for(served.url.replace("http:", "https:")))

    side.run(case)


def test_none_where_there_is_tls(encrypted: Served, side: Side) -> None:
    async def case() -> None:
        url = encrypted.url.partition("?")[0].replace("https:", "http:")
        with pytest.raises((BackendUnavailable, NotConfigured), match="TLS"):
            await side.open(store_for(url))

    side.run(case)


def test_a_key_opens_its_directories_only(served: Served, side: Side) -> None:
    async def case() -> None:
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

    side.run(case)


def test_what_is_too_large_for_one_request_is_sent_as_several(served: Served, side: Side) -> None:
    async def case() -> None:
        backend = await side.open(store_for(served.url), listen=False)
        ids = [f"{number:022}" for number in range(500)]
        many = [acquire(each, b"lock:much/" + each.encode(), note="\1" * 1000) for each in ids]
        replies = await backend.apply(many)
        assert {type(reply) for reply in replies} == {Granted}
        assert len(replies) == len(many)
        await backend.apply([release(each, b"lock:much/" + each.encode()) for each in ids])

    side.run(case)


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


def test_a_wrong_key(served: Served, side: Side) -> None:
    async def case() -> None:
        with pytest.raises(Forbidden, match="from the URL: unknown API key") as raised:
            await side.open(store_for(served.url_with("dibs_no_" + "x" * 22)))
        assert "xxx" not in str(raised.value)

    side.run(case)


def test_a_revoked_key_ends_its_stream(served: Served, side: Side) -> None:
    async def case() -> None:
        keys = keys_of(served.world)
        who, secret = served.world.do(lambda: keys.create("gone soon", {Scope.ACQUIRE}, ()))
        backend = await side.open(store_for(served.url_with(secret)))
        served.world.do(lambda: keys.revoke(who.key_id))
        await side.broken(backend)
        with pytest.raises(Forbidden, match="revoked"):
            await backend.apply([acquire("a" * 22)])

    side.run(case)


def test_a_fork_leaves_the_parent_s_connections_alone(
    served: Served, side: Side, key: bytes
) -> None:
    async def case() -> None:
        store = store_for(served.url)
        backend, other = await side.open(store), await side.open(store)
        token = granted((await backend.apply([acquire("a" * 22, key)]))[0]).token
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                backend.after_fork()
                gc.collect()
                code = 0 if backend.inbox == "" else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert granted((await backend.apply([acquire("a" * 22, key)]))[0]).token == token
        await backend.apply([acquire("b" * 22, key, queue=True, inbox=backend.inbox)])
        await other.apply([release("a" * 22, key)])
        assert (await side.pushed(backend, "granted")).key == key

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the test runner's own
        side.run(case)


def test_a_child_goes_on_by_connections_of_its_own(served: Served, key: bytes) -> None:
    client = dibs.sync.connect(served.url)
    lease = client.lock(key).acquire()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            busy = client.lock(key).try_acquire() is None
            code = 0 if lease.lost and busy and client.lock(key + b"2").try_acquire() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    lease.ensure()
    lease.release()
    client.close()


def test_a_loop_that_ends_leaves_no_socket_behind(served: Served) -> None:
    """Nobody has closed the client: warnings are errors here."""

    async def main() -> Status:
        client = dibs.connect(served.url)
        async with client.lock("left-open") as lease:
            assert not lease.lost
        return await client.lock("left-open").status()

    assert asyncio.run(main()).holders == ()
    gc.collect()


def test_under_another_event_loop(served: Served) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with dibs.connect(served.url) as client:
            async with client.lock("uv"):
                waiter = asyncio.create_task(client.lock("uv").acquire(wait=10))
                await asyncio.sleep(0.05)
            await (await waiter).release()

    uvloop.run(main())
    gc.collect()


def test_a_backend_can_be_closed_and_opened_again(served: Served, side: Side, key: bytes) -> None:
    async def case() -> None:
        backend = await side.open(store_for(served.url))
        inbox = backend.inbox
        await backend.close()
        assert backend.inbox == ""
        await backend.open()
        assert backend.inbox not in ("", inbox)
        await backend.apply([acquire("a" * 22, key)])

    side.run(case)


def test_making_a_store_connects_to_nothing(side: Side) -> None:
    backend = connection_to(store_for("https://nowhere.invalid"), side.mode)
    assert backend.inbox == ""
    if side.mode == "blocking":
        step(backend.close())
