"""Real proxies, as `deploy/` configures them: clients without a key cost those with one no lease."""

import os
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

import dibs.sync
from dibs.server.config import read_config
from tests.pages import write_files
from tests.server.world import LONG, Client, World, b64, lock
from tests.servers.binaries import ROOT, caddy_program, nginx_program
from tests.servers.certificates import key_of, self_signed
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.once

CONNECTIONS = 256
"""Of nginx's: clients' and those to the server."""


class Site(NamedTuple):
    proxy: str
    world: World
    port: int
    certificate: Path
    trusted: ssl.SSLContext
    folder: Path

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), LONG)

    def trusting(self, number: int, stack: ExitStack) -> Iterator[ssl.SSLSocket]:
        """Connections after their handshakes."""
        for _ in range(number):
            line = self.trusted.wrap_socket(self.connected(), server_hostname="127.0.0.1")
            yield stack.enter_context(line)

    def client(self, scope: str) -> Client:
        header = {"Authorization": f"Bearer {self.world.key(scope)}"}
        return Client(base_url=self.url, verify=self.trusted, headers=header)

    def listens(self) -> bool:
        try:
            self.connected().close()
        except OSError:
            return False
        return True


def start(site: Site) -> "subprocess.Popen[bytes]":
    """Start a proxy with its file of `deploy/`, but for paths and ports."""
    folder, is_nginx = site.folder, site.proxy == "nginx"
    file = "nginx.conf" if is_nginx else "Caddyfile"
    changes = {
        "127.0.0.1:5327": site.world.url.removeprefix("http://"),
        "/etc/dibs/tls.crt": str(site.certificate),
        "/etc/dibs/tls.key": str(key_of(site.certificate)),
        f"/var/log/{site.proxy}/dibs.log": str(folder / "access.log"),
    }
    if is_nginx:
        changes["listen 443 ssl"] = f"listen 127.0.0.1:{site.port} ssl"
    else:  # without its port for administrators and the one for HTTP
        changes["locks.example {"] = f"{site.url} {{"
        changes["grace_period 10s"] = "admin off\nauto_https disable_redirects\ngrace_period 100ms"
    text = (ROOT / "deploy" / file).read_text("utf-8")
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path, log = folder / file, folder / "error.log"
    if is_nginx:
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
        path.write_text(
            f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {log};\n"
            f"events {{ worker_connections {CONNECTIONS}; }}\nhttp {{\n{paths}{text}}}\n",
            "utf-8",
        )
        return subprocess.Popen([nginx_program().path, "-p", folder, "-c", path, "-e", log])
    path.write_text(text, "utf-8")
    with log.open("wb") as stderr:
        return subprocess.Popen(
            [caddy_program().path, "run", "--adapter", "caddyfile", "--config", path],
            stderr=stderr,
            env={**os.environ, "HOME": str(folder)},
        )


@contextmanager
def proxied(name: str, folder: Path) -> Generator[Site]:
    certificate = self_signed(folder / "tls" / "server.pem")
    trusted = ssl.create_default_context(cafile=certificate)
    write_files("how-to/nginx.md", folder)
    settings = read_config(str(folder / "server.toml"), {}, {})
    assert settings.is_loopback
    with World.over(folder, trusted_proxies=settings.trusted_proxies) as world:
        found = Site(name, world, free_port(), certificate, trusted, folder)
        proxy = start(found)
        try:
            wait_until(lambda: proxy.poll() is not None or found.listens(), f"{name} listens")
            assert proxy.poll() is None
            yield found
        finally:
            proxy.terminate()
            proxy.wait(LONG)


PROXIES = ("nginx", "caddy")


@pytest.fixture(scope="module", params=PROXIES)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    with proxied(request.param, tmp_path_factory.mktemp(request.param)) as site:
        yield site


def pipelining(site: Site, stack: ExitStack) -> None:
    """Thousands of requests in one go, of which no answer is read."""
    asks = b"GET /ui/views/timeline.js HTTP/1.1\r\nHost: x\r\n\r\n" * 990
    for line in site.trusting(40, stack):
        line.settimeout(0.5)
        with suppress(OSError):  # it takes no more, or was cut off
            line.sendall(asks)


def dripping(site: Site, stack: ExitStack) -> None:
    """Headers without an end, more than may be, on many connections."""
    for line in site.trusting(40, stack):
        with suppress(OSError):
            line.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 20_000)


def idling(site: Site, stack: ExitStack) -> None:
    """More connections than there is room for, each with one answer and nothing more to say."""
    for line in site.trusting(CONNECTIONS + 20, stack):
        with suppress(OSError):
            line.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            line.recv(4096)


def silent(site: Site, stack: ExitStack) -> None:
    """More connections than there is room for, without a TLS handshake."""
    for _ in range(CONNECTIONS + 20):
        stack.enter_context(site.connected())


@pytest.mark.parametrize(
    ("attack", "ttl"),
    [
        (dripping, 1.0),
        *(pytest.param(each, 3.0, marks=pytest.mark.long) for each in (pipelining, idling, silent)),
    ],
)
def test_clients_without_a_key_cost_no_lease(
    site: Site, attack: Callable[[Site, ExitStack], None], ttl: float
) -> None:
    key = site.world.key("acquire")
    url = f"https://{key}@127.0.0.1:{site.port}?cafile={site.certificate}"
    with (
        ExitStack() as stack,
        dibs.sync.connect(url) as client,
        client.lock("precious", ttl=ttl) as lease,
    ):
        attack(site, stack)
        until = time.monotonic() + ttl * 1.3
        while time.monotonic() < until:
            lease.ensure()
            with client.lock("another", ttl="3s", wait=0):
                time.sleep(0.01)
        lease.ensure(needs=ttl / 3)
        assert site.world.server.quotas.census().leases >= 1


@pytest.mark.parametrize("ttl", [1, pytest.param(12, marks=pytest.mark.long)])
def test_requests_through_a_proxy(site: Site, ttl: int) -> None:
    """No limit of a proxy ends a request that waits in a queue, and no log has a lease id."""
    with site.client("acquire") as client:
        own = {"Dibs-Lease-Id": "x" * 22}
        held = client.post(lock("a"), headers=own)
        assert held.status_code == 200
        assert held.headers["strict-transport-security"] == "max-age=31536000"
        assert client.delete(lock("a"), headers=own).status_code == 200
        large = client.post("/v1/batch", content=b" " * (2 << 20))
        assert large.status_code in (413, 502)  # Caddy may still be sending when it is refused
        client.post(lock("log"), params={"id": "secret-" + "x" * 22})
        with client.stream("GET", "/v1/events", params={"prefix": b64("seen")}) as stream:
            lines = stream.iter_lines()
            assert any(line == "event: hello" for line in lines)
            client.acquired("seen")
            assert any('"granted"' in line for line in lines), "each event leaves at once"
        first = client.acquired("long", ttl=ttl)
        waited = client.post(lock("long"), params={"wait": 30}, timeout=LONG + 30)
        assert waited.json()["sequencer"] > first["sequencer"]
    log = (site.folder / "access.log").read_text()
    assert re.search(r"/v1/locks/base64:", log)
    assert "secret-" not in log


@pytest.mark.parametrize("name", PROXIES)
def test_a_proxy_without_its_server_logs_no_lease_id(name: str, tmp_path: Path) -> None:
    """Nor do its messages about requests above a limit."""
    header = {"Dibs-Lease-Id": "secret-"}
    with proxied(name, tmp_path) as site, Client(verify=site.trusted, headers=header) as client:
        site.world.close()
        url = site.url + lock("a")
        statuses = {client.post(url, params={"id": "secret-"}).status_code for _ in range(60)}
    assert statuses <= {502, 429}
    logs = [(tmp_path / file).read_text() for file in ("access.log", "error.log")]
    assert "502" in logs[0], "operators see it"
    assert "secret-" not in "".join(logs)


def test_requests_without_a_key_are_counted(site: Site) -> None:
    if site.proxy == "caddy":
        pytest.skip("Caddy has no limits per address")
    with Client(base_url=site.url, verify=site.trusted) as nobody:
        wait_until(lambda: nobody.get("/livez").status_code == 200, "room beside other tests")
        statuses = {nobody.get("/livez").status_code for _ in range(200)}
    assert statuses == {200, 429}
