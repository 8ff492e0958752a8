"""`dibs serve`: how it starts, what it refuses, how it ends."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dibs.cli import main
from dibs.cli.serve import _print_json, _print_text
from dibs.core.names import fingerprint
from dibs.errors import NotConfigured
from dibs.server.config import CannotListen, ServerConfig, read_config
from dibs.server.front import context_for
from dibs.server.records import records_for
from tests.server.world import LONG, World, b64
from tests.servers.certificates import key_of, self_signed
from tests.servers.waiting import wait_until


class Served:
    """A server in a process."""

    def __init__(self, folder: Path, *options: str, **environ: str) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("DIBS_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dibs", "serve", *options],
            env=clean | {"DIBS_SERVER_LISTEN": "127.0.0.1:0"} | environ,
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def end(self, how: int = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(how)
        return self.ended()

    def ended(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=LONG)
        return self.process.returncode, out, err


@pytest.fixture
def started() -> Iterator[list[Served]]:
    found: list[Served] = []
    yield found
    for each in found:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate(timeout=LONG)


def test_from_nothing_to_a_lock_and_back(tmp_path: Path, started: list[Served]) -> None:
    store = f"sqlite:///{tmp_path / 'l.db'}"
    started.append(served := Served(tmp_path, "--leases", store))
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
        held = client.post(f"/v1/locks/{b64('x')}", params={"ttl": 30}).json()
        assert held["sequencer"] > 0
    assert served.end() == (0, "", "")
    started.append(again := Served(tmp_path, "--leases", store, "--json"))
    told = json.loads(again.line())
    assert set(told) == {"event", "url"}, "the first key is shown once, and so is the link"
    with httpx2.Client(base_url=told["url"], headers=headers) as client:
        assert client.get(f"/v1/locks/{b64('x')}").json()["id"] == fingerprint(held["id"])
    assert again.end(signal.SIGINT)[0] == 0


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--listen", "0.0.0.0:0"], 64, "without TLS, API keys can be read on the network"),
        (
            ["--listen", "0.0.0.0:0", "--allow-plain-http"],
            64,
            "no API key exists yet: create one first: dibs keys create",
        ),
        (["--listen", "nowhere"], 64, "write HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], 64, "a port is 0 to 65535"),
        (["--listen", "192.0.2.1:1", "--allow-plain-http"], 69, "can't listen on 192.0.2.1:1"),
        (
            ["--listen", "no.invalid:1", "--allow-plain-http"],
            69,
            "no.invalid:1 is no address here: ",
        ),
        (["--listen", "no.invalid:1"], 69, "no.invalid:1 is no address here: "),
        (["--listen", "no..where:1"], 64, "no..where:1 is no address: "),
        (["--tls-cert", "a.pem"], 64, "set both tls_cert and tls_key"),
        (["--tls-cert", "a.pem", "--tls-key", "b.pem"], 64, "tls_cert: no such file: a.pem"),
        (["--leases", "spoon://x"], 64, "is not the URL of a store"),
        (["--leases", "https://other"], 64, "cannot use another as its store"),
        (["--config", "missing.toml"], 64, "missing.toml can't be read"),
        (["--config", "bad.toml"], 64, "bad.toml"),
        (["--config", "typo.toml"], 64, "stoer"),
        (["--records", "temporal://localhost/x"], 64, "a service cannot keep its records"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_it_refuses(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    code: int,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("store = ")
    (tmp_path / "typo.toml").write_text('stoer = "memory://x"')
    if "--leases" not in options:
        options = [*options, "--leases", f"sqlite:///{tmp_path / 'l.db'}"]
    assert main(["serve", *options]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert "Traceback" not in err


def test_a_port_that_is_taken(tmp_path: Path, started: list[Served]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        started.append(
            served := Served(
                tmp_path,
                *("--leases", f"sqlite:///{tmp_path / 'l.db'}", "--listen", f"127.0.0.1:{port}"),
            )
        )
        code, _, err = served.ended()
    assert code == 69
    assert "Address already in use; choose another with --listen" in err


def test_a_store_that_is_away(tmp_path: Path, started: list[Served]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    records = f"sqlite:///{tmp_path / 'r.db'}"
    started.append(
        served := Served(tmp_path, "--leases", f"redis://127.0.0.1:{port}/0", "--records", records)
    )
    code, _, err = served.ended()
    assert (code, "Traceback" in err) == (69, False), err


def test_it_serves_the_store_that_dibs_url_names(tmp_path: Path, started: list[Served]) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    started.append(served := Served(tmp_path, DIBS_URL=url))
    assert "Created an administrator" in served.line()
    assert (tmp_path / "shared.db").exists()


def test_settings_by_file_environment_and_option(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text(
        'leases = "memory://a"\ndrain_time = "5s"\n[limits]\nmax_ttl = "1h"\nwaiters = 7\n'
    )
    environ = {
        "DIBS_SERVER_CONFIG": str(file),
        "DIBS_SERVER_LEASES": "memory://b",
        "DIBS_SERVER_LIMITS__MAX_TTL": "2h",
        "DIBS_SERVER_LIMITS__WAITERS_PER_KEY": "9",
        "DIBS_SERVER_TRUSTED_PROXIES": "10.0.0.1, 10.1.0.0/16",
        "DIBS_SERVER_ALLOW_PLAIN_HTTP": "true",
    }
    config = read_config(None, {}, environ)
    limits = config.limits
    assert (config.leases, config.drain_time) == ("memory://b", 5.0)
    assert (limits.max_ttl, limits.waiters, limits.waiters_per_key) == (7200.0, 7, 9)
    assert config.trusted_proxies == ("10.0.0.1", "10.1.0.0/16")
    assert config.allow_plain_http
    assert read_config(None, {"leases": "memory://c"}, environ).leases == "memory://c"


@pytest.mark.parametrize(
    "settings",
    [
        {"listen": "0.0.0.0:1"},
        {"listen": "[::]:1"},
        {"listen": "x:y"},
        {"limits": {"max_ttl": "never"}},
        {"limits": {"spoons": 3}},
        {"limits": {"min_ttl": 10, "max_ttl": 5}},
        {"limits": {"idle_time": 0}},
        {"limits": {"stall_time": -1}},
        {"limits": {"stream_beat": float("nan")}},
        {"placement": [{"name": "a", "url": "memory://a"}, {"name": "a", "url": "memory://b"}]},
        {"leases": "memory://a", "placement": [{"name": "a", "url": "memory://a"}]},
    ],
    ids=str,
)
def test_settings_that_make_no_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(NotConfigured):
        read_config(None, settings, {})


@pytest.mark.parametrize(
    "url", ["etcd://host", "kubernetes://", "nats://user:secret@host", "s3://b"]
)
def test_records_that_a_store_cannot_keep(url: str) -> None:
    with pytest.raises(NotConfigured, match="cannot keep its records") as refusal:
        records_for(url)
    assert 'set records = "sqlite:///records.db"' in str(refusal.value)
    assert "secret" not in str(refusal.value)


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
    ("certificate", "key", "told"),
    [
        ("a.key", "a.pem", "are the two swapped"),
        ("junk", "a.key", "junk has no certificate"),
        ("a.pem", "junk", "junk has no private key"),
        ("a.pem", "b.key", "b.key is not the private key of the certificate in .*a.pem"),
        ("a.pem", "locked.key", "passphrase"),
        ("broken.pem", "a.key", "broken.pem and .*a.key do not serve"),
    ],
)
def test_tls_files_that_are_none(tls_files: Path, certificate: str, key: str, told: str) -> None:
    with pytest.raises(NotConfigured, match=told):
        context_for(str(tls_files / certificate), str(tls_files / key))


def test_over_tls(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path / "tls" / "server.pem")
    world = World.over(tmp_path, tls_cert=str(certificate), tls_key=str(key_of(certificate)))
    try:
        assert world.url.startswith("https://127.0.0.1:")
        headers = {"Authorization": f"Bearer {world.admin_key}"}
        trusted = ssl.create_default_context(cafile=certificate)
        with httpx2.Client(base_url=world.url, headers=headers, verify=trusted) as client:
            answer = client.get("/v1/locks")
            assert answer.json() == {"locks": [], "next": None}
            assert answer.headers["strict-transport-security"] == "max-age=31536000"
        with pytest.raises(httpx2.ConnectError), httpx2.Client(base_url=world.url) as client:
            client.get("/v1/locks")
    finally:
        world.close()


def test_the_end_comes_gracefully(tmp_path: Path) -> None:
    """Who waits is sent elsewhere, what runs ends, and leases stay."""
    world = World.over(tmp_path)
    client = world.client()
    held = client.post(f"/v1/locks/{b64('x')}", params={"ttl": 30}).json()
    got: list[httpx2.Response] = []
    waiter = threading.Thread(
        target=lambda: got.append(world.client().post(f"/v1/locks/{b64('x')}", params={"wait": 50}))
    )
    waiter.start()
    path = f"/v1/locks/{b64('x')}"
    wait_until(lambda: client.get(path).json()["waiting"], "somebody in line")
    world.do(world.server.stop)
    waiter.join(LONG)
    world.close()
    assert got[0].status_code == 503
    assert got[0].json()["type"] == "/problems/draining"
    assert got[0].headers["retry-after"] == "1"
    again = World.over(tmp_path)
    try:
        after = again.client(key=client.headers["authorization"].removeprefix("Bearer "))
        shown = after.get(f"/v1/locks/{b64('x')}").json()
        assert (shown["id"], shown["waiting"]) == (fingerprint(held["id"]), 0)
    finally:
        again.close()


def test_the_first_key_is_not_made_in_vain(tmp_path: Path) -> None:
    """Where the start fails nobody would see it, and there would be no other."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = ServerConfig(
            listen=f"127.0.0.1:{port}", leases=f"sqlite:///{tmp_path / 'leases.db'}"
        )
        with pytest.raises(CannotListen):
            World(settings)
    world = World.over(tmp_path)
    assert world.admin_key.startswith("dibs_")
    world.close()


@pytest.mark.once
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_first_key_that_nobody_has_seen_is_none(tmp_path: Path, started: list[Served]) -> None:
    """Else the next start would show no other."""
    options = ("--leases", f"sqlite:///{tmp_path / 'l.db'}")
    with open("/dev/full", "w") as full:
        vain = subprocess.run(
            [sys.executable, "-m", "dibs", "serve", *options, "--listen", "127.0.0.1:0"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LONG,
            check=False,
        )
    revoked, unwritten = vain.stderr.splitlines()  # and all was closed in good order before
    assert vain.returncode == 74
    assert "nobody has seen it, so it was revoked" in revoked
    assert "cannot write to stdout" in unwritten
    started.append(served := Served(tmp_path, *options))
    assert served.line().startswith("Created an administrator")
    assert served.end()[0] == 0


@pytest.mark.once
def test_where_stdout_is_closed_the_first_key_is_none_either(
    tmp_path: Path, started: list[Served]
) -> None:
    options = ("--leases", f"sqlite:///{tmp_path / 'l.db'}")
    command = [sys.executable, "-m", "dibs", "serve", *options, "--listen", "127.0.0.1:0"]
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command],
        stderr=subprocess.PIPE,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert closed.returncode == 64
    assert "nobody has seen it, so it was revoked" in closed.stderr
    assert "stdout is closed: the administrator API key would be lost" in closed.stderr
    started.append(served := Served(tmp_path, *options))
    assert served.line().startswith("Created an administrator")
    assert served.end()[0] == 0


def test_where_nobody_said_where_leases_go_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url, elsewhere = (f"sqlite:///{tmp_path / name}.db" for name in ("leases", "keys"))
    monkeypatch.setattr("dibs.server.config.implicit_url", lambda: url)
    for records, told in (("", f"Leases and keys: {url}"), (elsewhere, f"Leases: {url}")):
        world = World(ServerConfig(listen="127.0.0.1:0", records=records))
        _print_text(world.server)
        first, *others = capsys.readouterr().out.splitlines()
        assert first == told
        assert others[0].startswith("Created an administrator")
        _print_json(world.server)
        assert json.loads(capsys.readouterr().out)["leases"] == url
        world.close()


def test_without_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in [each for each in sys.modules if each.startswith("dibs.server")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve"]) == 64
    assert "pip install 'dibs[server]'" in capsys.readouterr().err


def test_where_a_request_came_from_behind_a_proxy(tmp_path: Path) -> None:
    forwarded = {"X-Forwarded-For": "203.0.113.7"}
    for trusted, seen in (((), "127.0.0.1"), (("127.0.0.1",), "203.0.113.7")):
        world = World.over(tmp_path / seen, trusted_proxies=trusted)
        try:
            client = world.client()
            client.post(f"/v1/locks/{b64('x')}", headers=forwarded)
            assert client.get(f"/v1/locks/{b64('x')}").json()["info"]["ip"] == seen
        finally:
            world.close()
