"""`dibs serve`: how it starts, what it refuses, how it ends."""

import gc
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from dibs.cli import main
from dibs.cli.serve import _print_json, _print_text
from dibs.core.names import fingerprint
from dibs.errors import NotConfigured
from dibs.server.config import ServerConfig
from dibs.server.front import context_for
from tests.server.world import LONG, Served, World, acquire, acquired, lock, problem, waiting
from tests.servers.certificates import key_of, self_signed
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until


@pytest.fixture
def store(tmp_path: Path) -> tuple[str, str]:
    """The option for leases in a file."""
    return ("--leases", f"sqlite:///{tmp_path / 'leases.db'}")


def test_from_nothing_to_a_lock_and_back(
    start: Callable[..., Served], store: tuple[str, str]
) -> None:
    served = start(DIBS_URL=store[1])
    first = re.fullmatch(
        r"Created an administrator API key.*shown only once: (dibs_\w+_[\w-]{22})", served.line()
    )
    where = re.fullmatch(r"Listening on (http://127.0.0.1:\d+)", served.line())
    link = re.fullmatch(
        r"Dashboard, for one sign-in .*: (http\S+)/#ticket=([\w.-]+)", served.line()
    )
    assert first
    assert where
    assert link
    assert link[1] == where[1]
    headers = {"Authorization": f"Bearer {first[1]}"}
    with httpx2.Client(base_url=where[1], headers=headers) as client:
        held = acquired(client, "x")
    assert served.end() == (0, "", "")
    again = start(*store, "--json")
    told = json.loads(again.line())
    assert set(told) == {"event", "url"}, "the first key is shown once, and so is the link"
    with httpx2.Client(base_url=told["url"], headers=headers) as client:
        assert client.get(lock("x")).json()["id"] == fingerprint(held["id"])
    assert again.end(signal.SIGINT)[0] == 0


def test_the_local_store_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url, elsewhere = (f"sqlite:///{tmp_path / name}.db" for name in ("leases", "keys"))
    monkeypatch.setattr("dibs.server.config.implicit_url", lambda: url)
    for records, told in (("", f"Leases and keys: {url}"), (elsewhere, f"Leases: {url}")):
        with World(ServerConfig(listen="127.0.0.1:0", records=records)) as world:
            _print_text(world.server)
            first, *others = capsys.readouterr().out.splitlines()
            assert first == told
            assert others[0].startswith("Created an administrator")
            _print_json(world.server)
            assert json.loads(capsys.readouterr().out)["leases"] == url


@pytest.mark.parametrize(
    ("options", "code", "why"),
    [
        ("--listen 0.0.0.0:0", 64, "without TLS, API keys can be read on the network"),
        (
            "--listen 0.0.0.0:0 --allow-plain-http",
            64,
            "no API key exists yet: create one first: dibs keys create",
        ),
        ("--listen nowhere", 64, "write HOST:PORT"),
        ("--listen 127.0.0.1:99999", 64, "a port is 0 to 65535"),
        ("--listen 127.0.0.1:{taken}", 69, "Address already in use; choose another with --listen"),
        ("--listen 192.0.2.1:1 --allow-plain-http", 69, "can't listen on 192.0.2.1:1"),
        ("--listen no.invalid:1", 69, "no.invalid:1 is no address here: "),
        ("--listen no..where:1", 64, "no..where:1 is no address: "),
        ("--tls-cert a.pem", 64, "set both tls_cert and tls_key"),
        ("--tls-cert a.pem --tls-key b.pem", 64, "tls_cert: no such file: a.pem"),
        ("--leases spoon://x", 64, "is not the URL of a store"),
        ("--leases https://other", 64, "cannot use another as its store"),
        ("--leases redis://127.0.0.1:{free}/0 --records sqlite:///r.db", 69, ""),
        ("--config missing.toml", 64, "missing.toml can't be read"),
        ("--config bad.toml", 64, "bad.toml"),
        ("--config typo.toml", 64, "stoer"),
        ("--records temporal://localhost/x", 64, "a service cannot keep its records"),
        ("--log-format xml", 64, "--log-format"),
    ],
)
def test_what_it_refuses(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    store: tuple[str, str],
    options: str,
    code: int,
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("store = ")
    (tmp_path / "typo.toml").write_text('stoer = "memory://x"')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = options.format(taken=taken.getsockname()[1], free=free_port()).split()
        words += () if "--leases" in words else store
        assert main(["serve", *words]) == code
    out, err = capsys.readouterr()
    assert (out, "Traceback" in err) == ("", False)
    assert why in err
    if "{taken}" in options:
        with World.over(tmp_path) as world:
            assert world.admin_key, "the first key was not made in vain"


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
    start: Callable[..., Served], store: tuple[str, str], stdout: str, code: int, why: str
) -> None:
    """Else the next start would show no other."""
    serve = [sys.executable, "-m", "dibs", "serve", *store, "--listen", "127.0.0.1:0"]
    vain = subprocess.run(
        ["sh", "-c", f'exec "$@" {stdout}', "sh", *serve],
        stderr=subprocess.PIPE,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert vain.returncode == code
    assert "nobody has seen it, so it was revoked" in vain.stderr
    assert why in vain.stderr
    served = start(*store)
    assert served.line().startswith("Created an administrator")
    assert served.end()[0] == 0


def test_without_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in [each for each in sys.modules if each.startswith("dibs.server")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve"]) == 64
    assert "pip install 'dibs[server]'" in capsys.readouterr().err


# -- TLS and proxies --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a` and `b`, each with its key; `locked.key` is that of `a`, with a passphrase; `junk`."""
    folder = tmp_path_factory.mktemp("tls")
    for name in "ab":
        self_signed(folder / f"{name}.pem")
    subprocess.run(
        ["openssl", "ec", "-aes128", "-passout", "pass:x", "-in", "a.key", "-out", "locked.key"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    (folder / "junk").write_bytes(b"\xff\0 nothing")
    (folder / "broken.pem").write_text(
        "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"
    )
    return folder


@pytest.mark.parametrize(
    ("certificate", "key", "why"),
    [
        ("a.key", "a.pem", "are the two swapped"),
        ("junk", "a.key", "junk has no certificate"),
        ("a.pem", "junk", "junk has no private key"),
        ("a.pem", "b.key", "b.key is not the private key of the certificate in .*a.pem"),
        ("a.pem", "locked.key", "passphrase"),
        ("broken.pem", "a.key", "broken.pem and .*a.key do not serve"),
    ],
)
def test_tls_files_that_are_wrong(tls_files: Path, certificate: str, key: str, why: str) -> None:
    with pytest.raises(NotConfigured, match=why):
        context_for(str(tls_files / certificate), str(tls_files / key))


def test_over_tls(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path / "tls" / "server.pem")
    files = {"tls_cert": str(certificate), "tls_key": str(key_of(certificate))}
    with World.over(tmp_path, **files) as world:
        assert world.url.startswith("https://127.0.0.1:")
        headers = {"Authorization": f"Bearer {world.admin_key}"}
        trusted = ssl.create_default_context(cafile=certificate)
        with httpx2.Client(base_url=world.url, headers=headers, verify=trusted) as client:
            answer = client.get("/v1/locks")
            assert answer.json() == {"locks": [], "next": None}
            assert answer.headers["strict-transport-security"] == "max-age=31536000"
        with pytest.raises(httpx2.ConnectError), httpx2.Client(base_url=world.url) as client:
            client.get("/v1/locks")


@pytest.mark.parametrize(("trusted", "seen"), [((), "127.0.0.1"), (("127.0.0.1",), "203.0.113.7")])
def test_the_address_of_a_holder_behind_a_proxy(trusted: tuple[str, ...], seen: str) -> None:
    with World.over(trusted_proxies=trusted) as world:
        client = world.client()
        client.post(lock("x"), headers={"X-Forwarded-For": "203.0.113.7"})
        assert client.get(lock("x")).json()["info"]["ip"] == seen


# -- the end ----------------------------------------------------------------------------------------


def test_the_end_is_graceful(tmp_path: Path) -> None:
    """Those who wait are sent elsewhere, what runs ends, and leases stay."""
    with World.over(tmp_path) as world, ThreadPoolExecutor() as pool:
        client = world.client()
        held = acquired(client, "x")
        waits = pool.submit(acquire, world.client(), "x", wait=50)
        wait_until(lambda: waiting(client, "x"), "somebody in line")
        world.do(world.server.stop)
        answer = waits.result(LONG)
        assert (*problem(answer), answer.headers["retry-after"]) == (503, "draining", "1")
    with World.over(tmp_path) as again:
        shown = again.client(key=world.admin_key).get(lock("x")).json()
        assert (shown["id"], shown["waiting"]) == (fingerprint(held["id"]), 0)


def test_a_server_that_has_ended_is_not_kept_in_memory() -> None:
    world = World.over()
    assert world.client("read").get("/v1/openapi.json").status_code == 200
    keys = weakref.ref(world.server.keys)
    world.close()
    del world
    gc.collect()
    assert keys() is None
