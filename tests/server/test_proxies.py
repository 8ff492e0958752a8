"""Real proxies, as `deploy/` configures them: clients without a key cost those with one no lease."""

import re
import socket
import ssl
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

import dibs.sync
from dibs.server.config import read_config
from tests.pages import write_files
from tests.sampling import sampled
from tests.server.world import LONG, Client, World, b64, lock
from tests.servers.binaries import ROOT, caddy_program, nginx_program
from tests.servers.certificates import key_of, self_signed
from tests.servers.ports import HOST
from tests.servers.server import Server

pytestmark = pytest.mark.once

CONNECTIONS = 256
"""Of nginx's: clients' and those to the server."""

CROWD = CONNECTIONS + 20


class Site(Server):
    """A proxy with its file of `deploy/`, but for paths and ports, before a server."""

    PORT_IS_TAKEN = "address already in use"
    SCHEME = "https"

    def __init__(self, folder: Path, world: World) -> None:
        super().__init__(folder)
        self.world, self.log = world, folder / "access.log"
        self.certificate = self_signed(folder / "tls" / "server.pem")
        self.trusted = ssl.create_default_context(cafile=self.certificate)

    def connected(self) -> socket.socket:
        return socket.create_connection((HOST, self.port), LONG)

    def client(self, **headers: str) -> Client:
        return Client(base_url=self.url, verify=self.trusted, headers=headers)

    def write(self, file: str, changes: dict[str, object], around: str = "{}") -> Path:
        """Write its configuration, with what is here in place of what the file names."""
        text = (ROOT / "deploy" / file).read_text("utf-8")
        changes |= {
            "127.0.0.1:5327": self.world.url.removeprefix("http://"),
            "/etc/dibs/tls.crt": self.certificate,
            "/etc/dibs/tls.key": key_of(self.certificate),
        }
        for old, new in changes.items():
            assert text.count(old) == 1, old
            text = text.replace(old, str(new))
        path = self.folder / file
        path.write_text(around.replace("{}", text), "utf-8")
        return path

    def _answers(self) -> bool:
        try:
            self.connected().close()
        except OSError:
            return False
        return True


class Nginx(Site):
    def _command(self) -> list[str | Path]:
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = "".join(f"{kind}_temp_path {self.folder}/{kind};" for kind in kinds)
        around = f"""daemon off; master_process off; pid {self.folder}/pid;
        events {{ worker_connections {CONNECTIONS}; }}
        http {{ {paths} {{}} }}"""
        listen = {"listen 443 ssl": f"listen {HOST}:{self.port} ssl"}
        path = self.write("nginx.conf", listen | {"/var/log/nginx/dibs.log": self.log}, around)
        return [nginx_program().path, "-p", self.folder, "-c", path, "-e", "stderr"]


class Caddy(Site):
    def _command(self) -> list[str | Path]:
        changes = {
            "/var/log/caddy/dibs.log": self.log,
            "locks.example {": f"{self.url} {{",
            # without its port for administrators and the one for HTTP
            "grace_period 10s": "admin off\nauto_https disable_redirects\ngrace_period 100ms",
        }
        path = self.write("Caddyfile", changes)
        options = ("--adapter", "caddyfile", "--config", path)
        return ["env", f"HOME={self.folder}", caddy_program().path, "run", *options]


@contextmanager
def proxied(proxy: type[Site], folder: Path) -> Generator[Site]:
    write_files("how-to/nginx.md", folder)
    settings = read_config(str(folder / "server.toml"), {}, {})
    assert settings.is_loopback
    with (
        World.over(folder, trusted_proxies=settings.trusted_proxies) as world,
        proxy(folder, world) as site,
    ):
        yield site


@pytest.fixture(scope="module", params=[Nginx, Caddy])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    with proxied(request.param, tmp_path_factory.mktemp(request.param.__name__)) as site:
        yield site


def get(path: str, end: bytes = b"\r\n") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n".encode() + end


ATTACKS = {
    "headers without an end": (1.0, 40, get("/livez", b"X: y\r\n" * 20_000)),
    "thousands of requests in one go": (3.0, 40, get("/ui/views/timeline.js") * 990),
    "more connections than there is room for": (3.0, CROWD, get("/livez")),
    "and without a TLS handshake": (3.0, CROWD, None),
}
"""The ttl of the lease, the number of connections, and what each sends; no answer is read."""


@pytest.mark.parametrize("attack", sampled(ATTACKS, every=len(ATTACKS)))
def test_clients_without_a_key_cost_no_lease(site: Site, attack: str) -> None:
    ttl, number, sent = ATTACKS[attack]
    key = site.world.key("acquire")
    url = f"https://{key}@127.0.0.1:{site.port}?cafile={site.certificate}"
    with (
        ExitStack() as stack,
        dibs.sync.connect(url) as client,
        client.lock("precious", ttl=ttl) as lease,
    ):
        for _ in range(number):
            line = site.connected()
            if sent is not None:
                line = site.trusted.wrap_socket(line, server_hostname=HOST)
            stack.enter_context(line).settimeout(0.5)
            with suppress(OSError):  # it takes no more, or was cut off
                line.sendall(sent or b"")
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
    with site.client(Authorization=f"Bearer {site.world.key('acquire')}") as client:
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
    log = site.log.read_text()
    assert re.search(r"/v1/locks/base64:", log)
    assert "secret-" not in log


@pytest.mark.parametrize("proxy", [Nginx, Caddy])
def test_a_proxy_without_its_server_logs_no_lease_id(proxy: type[Site], tmp_path: Path) -> None:
    """Nor do nginx's messages about the requests above its limit for an address."""
    with proxied(proxy, tmp_path) as site, site.client(**{"Dibs-Lease-Id": "secret-"}) as client:
        site.world.close()
        own = {"id": "secret-"}
        statuses = {client.post(lock("a"), params=own).status_code for _ in range(200)}
        messages = (tmp_path / f"{proxy.__name__}.log").read_text()
    assert statuses == ({502, 429} if proxy is Nginx else {502})
    log = site.log.read_text()
    assert "502" in log, "operators see it"
    assert "secret-" not in log + messages
