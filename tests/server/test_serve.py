"""`dibs serve`: how it starts, what it refuses, how it ends."""

import gc
import json
import re
import signal
import socket
import subprocess
import sys
import weakref
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from dibs.cli import main
from dibs.core.names import fingerprint
from dibs.errors import NotConfigured
from dibs.server.front import context_for
from dibs.server.main import new_loop
from tests.cli.processes import Cli, end, line
from tests.server.world import LONG, TRUST, Client, Patch, Pool, World, lock, problem
from tests.servers.certificates import key_of, self_signed
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until


@pytest.fixture
def store(tmp_path: Path) -> tuple[str, str]:
    return ("--leases", f"sqlite:///{tmp_path / 'leases.db'}")


def test_from_nothing_to_a_lock_and_back(cli: Cli) -> None:
    serve = ("serve", "--listen", "127.0.0.1:0")
    served = cli.start(*serve)
    printed = "\n".join(line(served) for _ in range(3))
    found = re.fullmatch(
        r"Created an administrator .*: (dibs_\w+_[\w-]{22})\n"
        r"Listening on (http://127.0.0.1:\d+)\n"
        r"Dashboard, for one sign-in .*: \2/#ticket=[\w.-]+",
        printed,
    )
    assert found, printed
    headers = {"Authorization": f"Bearer {found[1]}"}
    with Client(base_url=found[2], headers=headers, verify=TRUST) as client:
        held = client.acquired("x")
    served.terminate()
    assert end(served) == (0, "", "")
    again = cli.start(*serve, "--json")
    told = json.loads(line(again))
    assert set(told) == {"event", "url"}, "the first key is shown once, and so is the link"
    with Client(base_url=told["url"], headers=headers, verify=TRUST) as client:
        assert client.get(lock("x")).json()["id"] == fingerprint(held["id"])
    again.send_signal(signal.SIGINT)
    assert end(again)[0] == 0


REFUSED = [
    ("--listen 0.0.0.0:0", 64, "without TLS, API keys can be read on the network"),
    ("--listen 0.0.0.0:0 --allow-plain-http", 64, "no API key exists yet: create one first"),
    ("--listen nowhere", 64, "write HOST:PORT"),
    ("--listen 127.0.0.1:{taken}", 69, "Address already in use; choose another with --listen"),
    ("--listen no.invalid:1", 69, "no.invalid:1 is no address here: "),
    ("--tls-cert a.pem", 64, "set both tls_cert and tls_key"),
    ("--tls-cert a.pem --tls-key b.pem", 64, "tls_cert: no such file: a.pem"),
    ("--leases https://other", 64, "cannot use another as its store"),
    ("--leases redis://127.0.0.1:{free}/0 --records sqlite:///r.db", 69, ""),
    ("--config bad.toml", 64, "bad.toml"),
    ("--records temporal://localhost/x", 64, "a service cannot keep its records"),
]


def test_what_it_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Patch, store: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("store = ")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for options, code, why in REFUSED:
            words = options.format(taken=taken.getsockname()[1], free=free_port()).split()
            words += () if "--leases" in words else store
            assert main(["serve", *words]) == code, options
            out, err = capsys.readouterr()
            assert (out, "Traceback" in err) == ("", False)
            assert why in err
    with World.over(tmp_path) as world:
        assert world.admin_key, "no first key was made in vain"


@pytest.mark.once
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize(
    ("stdout", "code", "why"),
    [
        (">/dev/full", 74, "cannot write to stdout"),
        (">&-", 64, "stdout is closed: the administrator API key would be lost"),
    ],
)
def test_a_first_key_that_could_not_be_shown_is_revoked(
    tmp_path: Path, store: tuple[str, str], stdout: str, code: int, why: str
) -> None:
    """Else the next start would show no other."""
    serve = [sys.executable, "-m", "dibs", "serve", *store, "--listen", "127.0.0.1:0"]
    shell = ["sh", "-c", f'exec "$@" {stdout}', "sh", *serve]
    vain = subprocess.run(shell, stderr=subprocess.PIPE, text=True, timeout=LONG, check=False)
    assert vain.returncode == code
    assert "nobody has seen it, so it was revoked" in vain.stderr
    assert why in vain.stderr
    with World.over(tmp_path) as world:
        assert world.admin_key


def test_tls_files_that_are_wrong(tmp_path: Path) -> None:
    a, b = (self_signed(tmp_path / f"{name}.pem") for name in "ab")
    junk = tmp_path / "junk"
    junk.write_bytes(b"\xff\0 nothing")
    for certificate, key, why in (
        (key_of(a), a, "are the two swapped"),
        (junk, key_of(a), "junk has no certificate"),
        (a, junk, "junk has no private key"),
        (a, key_of(b), "b.key is not the private key of the certificate in .*a.pem"),
    ):
        with pytest.raises(NotConfigured, match=why):
            context_for(str(certificate), str(key))


def test_the_address_of_a_holder_behind_a_proxy() -> None:
    trusted: tuple[str, ...]
    for trusted, seen in (((), "127.0.0.1"), (("127.0.0.1",), "203.0.113.7")):
        with World.over(trusted_proxies=trusted) as world:
            client = world.client()
            client.post(lock("x"), headers={"X-Forwarded-For": "203.0.113.7"})
            assert client.get(lock("x")).json()["info"]["ip"] == seen


@pytest.mark.parametrize("kind", ["uvloop", "asyncio"])
def test_uvloop_where_it_is_installed(monkeypatch: Patch, kind: str) -> None:
    if kind == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    with closing(new_loop()) as loop:
        assert type(loop).__module__.partition(".")[0] == kind


def test_the_end_is_graceful(tmp_path: Path, pool: Pool) -> None:
    """Those who wait are sent elsewhere, what runs ends, leases stay, and nothing is kept in memory."""
    world = World.over(tmp_path)
    keys, admin_key = weakref.ref(world.server.keys), world.admin_key
    held = world.client().acquired("x")
    waits = pool.submit(world.client().acquire, "x", wait=50)
    wait_until(partial(world.client().waiting, "x"), "somebody in line")
    world.do(world.server.stop)
    answer = waits.result(LONG)
    assert (*problem(answer), answer.headers["retry-after"]) == (503, "draining", "1")
    world.close()
    del world
    gc.collect()
    assert keys() is None
    with World.over(tmp_path) as again:
        shown = again.client(key=admin_key).get(lock("x")).json()
        assert (shown["id"], shown["waiting"]) == (fingerprint(held["id"]), 0)
