"""Passwords, ACLs and TLS: who is let in, and what those who are not are told."""

import subprocess
from pathlib import Path

import pytest
import redis

from dibs.errors import BackendUnavailable, Forbidden, IncompatibleVersion, NotConfigured
from dibs.model import Failed, Granted
from dibs.stores.redis.errors import RIGHTS
from tests.servers.redis import RedisServer
from tests.stores.redis.both_worlds import KEY, Side, acquire, release

PASSWORD = "s3:cr/et@#?&"
QUOTED = "s3%3Acr%2Fet%40%23%3F%26"
NEEDED = RIGHTS.replace("NAME", "app")


@pytest.fixture(params=["async", "blocking"])
def side(request: pytest.FixtureRequest) -> Side:
    return Side(request.param)


async def hand_over(side: Side, url: str) -> None:
    """All that a store is for: a grant, a queue, a push."""
    waiter, other = await side.open(url), await side.open(url)
    await other.apply([acquire("a")])
    await waiter.apply([acquire("b", queue=True, inbox=waiter.inbox)])
    await other.apply([release("a")])
    assert (await side.pushed(waiter, "granted")).key == KEY
    assert len((await waiter.scan(b"lock:", None, 10)).items) == 1


async def refused(side: Side, url: str, told: str) -> None:
    """The login is refused, in plain words, and the password is not among them."""
    with pytest.raises(Forbidden, match=told) as refusal:
        backend = await side.open(url, listen=False)
        await backend.apply([acquire()])
    assert "s3" not in f"{refusal.value} {refusal.value!r} {refusal.value.__cause__!r}"


def test_a_password(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        with RedisServer(tmp_path, requirepass=PASSWORD) as server:
            host = f"127.0.0.1:{server.port}"
            await hand_over(side, f"redis://:{QUOTED}@{host}")
            told = "Redis requires a password. Add it to the URL.*NOAUTH"
            await refused(side, f"redis://{host}", told)
            await refused(side, f"redis://:s3wrong@{host}", "does not accept.*WRONGPASS")
            await refused(side, f"redis://nobody:{QUOTED}@{host}", "does not accept")

    side.run(case)


def test_a_password_for_a_server_that_has_none(side: Side, redis_server: RedisServer) -> None:
    async def case() -> None:
        url = f"redis://:s3cret@127.0.0.1:{redis_server.port}"
        await refused(side, url, "it has none")

    side.run(case)


def test_a_server_that_repeats_what_it_does_not_know(side: Side, tmp_path: Path) -> None:
    """It answers `unknown command 'AUTH', with args beginning with: …`, and there is the password."""

    async def case() -> None:
        extra = ['rename-command AUTH ""']
        with RedisServer(tmp_path, requirepass="s3cret", extra=extra) as server:
            with pytest.raises(IncompatibleVersion, match="unknown command 'AUTH'") as refusal:
                await side.open(f"redis://:s3cret@127.0.0.1:{server.port}")
            assert "s3cret" not in f"{refusal.value}"

    side.run(case)


def test_a_user_who_may_do_just_what_is_needed(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        users = [f"app on >{PASSWORD} -@all {NEEDED}"]
        with RedisServer(tmp_path, users=users) as server:
            host = f"127.0.0.1:{server.port}"
            await hand_over(side, f"redis://app:{QUOTED}@{host}")

    side.run(case)


def test_users_have_channels_of_their_own(side: Side, tmp_path: Path) -> None:
    """With the rights that are recommended none can overhear another's notifications, or forge any."""

    async def case() -> None:
        users = [f"{name} on >pw -@all {RIGHTS.replace('NAME', name)}" for name in ("app", "other")]
        with RedisServer(tmp_path, users=users) as server:
            backend = await side.open(f"redis://app:pw@127.0.0.1:{server.port}")
            with redis.Redis(
                port=server.port, username="other", password="pw", protocol=2
            ) as other:
                with pytest.raises(redis.exceptions.NoPermissionError):
                    other.publish(backend.inbox, b"")
                for pattern in ("dibs:*", "dibs:inbox:*", "dibs:inbox:app:*"):
                    with (
                        other.pubsub() as channel,
                        pytest.raises(redis.exceptions.NoPermissionError),
                    ):
                        channel.psubscribe(pattern)
                        channel.get_message(timeout=10)

    side.run(case)


@pytest.mark.parametrize(
    ("missing", "listen"), [("+fcall", False), ("+subscribe", True), ("~dibs:*", False)]
)
def test_a_user_who_lacks_a_right(side: Side, tmp_path: Path, missing: str, listen: bool) -> None:
    async def case() -> None:
        user = f"app on >{PASSWORD} -@all {NEEDED}".replace(missing, "")
        with RedisServer(tmp_path, users=[user]) as server:
            url = f"redis://app:{QUOTED}@127.0.0.1:{server.port}"
            with pytest.raises(Forbidden, match=r"ACL does not allow it.*NOPERM"):
                backend = await side.open(url, listen=listen)
                await backend.apply([acquire()])

    side.run(case)


def test_keys_that_a_user_may_not_touch_cost_the_others_nothing(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        rights = NEEDED.replace("~dibs:*", "~dibs:{lock:mine/*")
        user = f"app on >{PASSWORD} -@all {rights}"
        with RedisServer(tmp_path, users=[user]) as server:
            backend = await side.open(f"redis://app:{QUOTED}@127.0.0.1:{server.port}")
            mine = [acquire(key=b"lock:mine/%d" % number) for number in range(3)]
            replies = await backend.apply([*mine[:2], acquire(key=b"lock:theirs"), mine[2]])
            assert [type(reply) for reply in replies] == [Granted, Granted, Failed, Granted]
            assert replies[2].reason == "forbidden"
            assert "NOPERM" in replies[2].detail
            with pytest.raises(Forbidden):
                await backend.apply([acquire(key=b"lock:theirs")])

    side.run(case)


# ---- TLS ------------------------------------------------------------------------------------------


def test_tls(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        with RedisServer(tmp_path, tls=True) as server:
            base = f"rediss://localhost:{server.port}/0"
            trusting = f"{base}?ssl_ca_certs={server.certificate}"
            await hand_over(side, trusting)
            await side.open(f"{base}?ssl_cert_reqs=none")
            await side.open(
                f"{trusting}&ssl_check_hostname=false".replace("localhost", "127.0.0.1")
            )
            with pytest.raises(BackendUnavailable, match="name the CA with ssl_ca_certs"):
                await side.open(base)
            with pytest.raises(BackendUnavailable, match="does this port speak TLS"):
                await side.open(f"redis://localhost:{server.port}?socket_connect_timeout=1s")
            with pytest.raises(NotConfigured, match=r"TLS can't be set up with .*nowhere\.pem"):
                await side.open(f"{base}?ssl_ca_certs={tmp_path}/nowhere.pem")

    side.run(case)


def test_a_plain_server_is_not_spoken_to_by_tls(side: Side, redis_server: RedisServer) -> None:
    async def case() -> None:
        with pytest.raises(BackendUnavailable, match="does this port speak TLS"):
            await side.open(f"rediss://localhost:{redis_server.port}?socket_connect_timeout=1s")

    side.run(case)


def test_a_certificate_of_the_client_s(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        mine = own_certificate(tmp_path)
        with RedisServer(tmp_path / "server", tls=True) as server:
            with server.client() as client:
                client.config_set("tls-ca-cert-file", str(mine))
                client.config_set("tls-auth-clients", "yes")
            base = f"rediss://localhost:{server.port}?ssl_ca_certs={server.certificate}"
            key = mine.with_suffix(".key")
            await hand_over(side, f"{base}&ssl_certfile={mine}&ssl_keyfile={key}")
            with pytest.raises(BackendUnavailable):
                await side.open(base)

    side.run(case)


def own_certificate(folder: Path) -> Path:
    """Signed by itself, which is enough for a server that trusts just this one."""
    certificate = folder / "client.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=client"
    subprocess.run(
        [*command.split(), "-keyout", certificate.with_suffix(".key"), "-out", certificate],
        check=True,
        capture_output=True,
    )
    return certificate
