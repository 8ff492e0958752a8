"""Real proxies, as `deploy/` configures them, before a server: strangers cost those with a key no lease."""

import os
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

import dibs.sync
from tests.server.inside import quotas_of
from tests.server.world import LONG, World, b64
from tests.servers.binaries import ROOT, MissingServer, caddy_program, nginx_program
from tests.servers.certificates import key_of, self_signed
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.once

CONNECTIONS = 256
"""Of nginx's: clients' and those to the server."""


class Site(NamedTuple):
    """A server behind a proxy."""

    proxy: str
    world: World
    port: int
    certificate: Path

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def client_url(self, key: str) -> str:
        return f"https://{key}@127.0.0.1:{self.port}?cafile={self.certificate}"

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), LONG)

    def trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.certificate)


def replaced(file: str, *pairs: tuple[str, str]) -> str:
    """A file of `deploy/` with other paths and ports."""
    text = (ROOT / "deploy" / file).read_text("utf-8")
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def start_nginx(
    port: int, server: str, certificate: Path, folder: Path
) -> "subprocess.Popen[bytes]":
    """Start nginx with `deploy/nginx.conf`, within a whole configuration."""
    text = replaced(
        "nginx.conf",
        ("127.0.0.1:5327", server),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/dibs/tls.crt", str(certificate)),
        ("/etc/dibs/tls.key", str(key_of(certificate))),
        ("/var/log/nginx/dibs.log", str(folder / "access.log")),
    )
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    file = folder / "nginx.conf"
    file.write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/error.log;\n"
        f"events {{ worker_connections {CONNECTIONS}; }}\nhttp {{\n{paths}{text}}}\n",
        "utf-8",
    )
    return subprocess.Popen([nginx_program().path, "-p", folder, "-c", file, "-e", folder / "error.log"])


def start_caddy(
    port: int, server: str, certificate: Path, folder: Path
) -> "subprocess.Popen[bytes]":
    """Start Caddy with `deploy/Caddyfile`, without its port for administrators and the one for HTTP."""
    text = replaced(
        "Caddyfile",
        ("\tgrace_period 10s", "\tadmin off\n\tauto_https disable_redirects\n\tgrace_period 1s"),
        ("127.0.0.1:5327", server),
        ("locks.example {", f"https://127.0.0.1:{port} {{"),
        ("/etc/dibs/tls.crt", str(certificate)),
        ("/etc/dibs/tls.key", str(key_of(certificate))),
        ("/var/log/caddy/dibs.log", str(folder / "access.log")),
    )
    file = folder / "Caddyfile"
    file.write_text(text, "utf-8")
    command: list[str | Path] = [
        caddy_program().path,
        "run",
        "--adapter",
        "caddyfile",
        "--config",
        file,
    ]
    with (folder / "error.log").open("wb") as log:
        return subprocess.Popen(command, stderr=log, env={**os.environ, "HOME": str(folder)})


PROXIES = {"nginx": start_nginx, "caddy": start_caddy}


@pytest.fixture(scope="module", params=PROXIES)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    certificate = self_signed(folder / "tls" / "server.pem")
    world = World.over(folder, trusted_proxies=("127.0.0.1",))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    try:
        proxy = PROXIES[name](port, world.url.removeprefix("http://"), certificate, folder)
    except MissingServer as missing:
        world.close()
        pytest.skip(str(missing))
    try:
        found = Site(name, world, port, certificate)
        wait_until(lambda: _listens(found, proxy), f"{name} listens")
        yield found
    finally:
        proxy.terminate()
        proxy.wait(LONG)
        world.close()


def _listens(site: Site, proxy: "subprocess.Popen[bytes]") -> bool:
    assert proxy.poll() is None
    try:
        site.connected().close()
    except OSError:
        return False
    return True


def pipelining(site: Site, stack: ExitStack) -> None:
    """Thousands of requests in one go, of which no answer is read."""
    asks = b"GET /ui/views/timeline.js HTTP/1.1\r\nHost: x\r\n\r\n" * 990
    trusted = site.trusted()
    for _ in range(40):
        line = stack.enter_context(
            trusted.wrap_socket(site.connected(), server_hostname="127.0.0.1")
        )
        line.settimeout(0.5)
        try:
            line.sendall(asks)
        except OSError:
            pass  # it takes no more, or was cut off


def idling(site: Site, stack: ExitStack) -> None:
    """More connections than there is room for, each with one answer and nothing more to say."""
    trusted = site.trusted()
    for _ in range(CONNECTIONS + 20):
        line = stack.enter_context(
            trusted.wrap_socket(site.connected(), server_hostname="127.0.0.1")
        )
        try:
            line.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            line.recv(4096)
        except OSError:
            pass


def saying_nothing(site: Site, stack: ExitStack) -> None:
    """More connections than there is room for, without a TLS handshake."""
    for _ in range(CONNECTIONS + 20):
        stack.enter_context(site.connected())


def dripping(site: Site, stack: ExitStack) -> None:
    """Headers without an end, more than may be, on many connections."""
    trusted = site.trusted()
    for _ in range(40):
        line = stack.enter_context(
            trusted.wrap_socket(site.connected(), server_hostname="127.0.0.1")
        )
        try:
            line.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 20_000)
        except OSError:
            pass


@pytest.mark.parametrize("attack", [pipelining, idling, saying_nothing, dripping])
def test_strangers_cost_nobody_a_lease(site: Site, attack: object) -> None:
    key = site.world.key("acquire")
    with (
        ExitStack() as stack,
        dibs.sync.connect(site.client_url(key)) as client,
        client.lock("precious", ttl="3s") as lease,
    ):
        attack(site, stack)  # type: ignore[operator]
        until = time.monotonic() + 4.0
        while time.monotonic() < until:
            lease.ensure()
            with client.lock("another", ttl="3s", wait=0):
                pass
        lease.ensure(needs="1s")
        assert quotas_of(site.world).census().leases >= 1


def test_what_a_client_is_told(site: Site) -> None:
    header = {"Authorization": f"Bearer {site.world.key('acquire')}"}
    with httpx2.Client(base_url=site.url, verify=site.trusted(), headers=header) as client:
        path = f"/v1/locks/{b64('told')}"
        held = client.post(path, headers={"Dibs-Lease-Id": "x" * 22})
        assert held.status_code == 200
        assert held.headers["strict-transport-security"] == "max-age=31536000"
        assert client.delete(path, headers={"Dibs-Lease-Id": "x" * 22}).status_code == 200
        large = client.post("/v1/batch", content=b" " * (2 << 20))
        assert large.status_code == 413


def test_a_request_may_wait_long(site: Site) -> None:
    """No limit of a proxy ends a request that waits in a queue, nor a stream."""
    header = {"Authorization": f"Bearer {site.world.key('acquire')}"}
    path = f"/v1/locks/{b64('long')}"
    with httpx2.Client(base_url=site.url, verify=site.trusted(), headers=header) as client:
        held = client.post(path, params={"ttl": 12})
        assert held.status_code == 200
        waited = client.post(path, params={"wait": 30}, timeout=LONG + 30)
        assert waited.status_code == 200
        assert waited.json()["sequencer"] > held.json()["sequencer"]


def test_requests_without_a_key_are_counted(site: Site) -> None:
    """Caddy has no limits per address."""
    if site.proxy == "caddy":
        return
    with httpx2.Client(base_url=site.url, verify=site.trusted()) as stranger:
        wait_until(lambda: stranger.get("/livez").status_code == 200, "room beside other tests")
        statuses = [stranger.get("/livez").status_code for _ in range(200)]
    assert set(statuses) == {200, 429}


def test_ids_are_not_logged(site: Site, tmp_path_factory: pytest.TempPathFactory) -> None:
    header = {"Authorization": f"Bearer {site.world.key('acquire')}"}
    with httpx2.Client(base_url=site.url, verify=site.trusted(), headers=header) as client:
        client.post(f"/v1/locks/{b64('log')}", params={"id": "secret-" + "x" * 22})
    log = (site.certificate.parent.parent / "access.log").read_text()
    assert re.search(r"/v1/locks/base64:", log)
    assert "secret-" not in log
