"""How a cluster is found and reached: kubeconfigs, pods, plugins, TLS and proxies, with real files."""

import asyncio
import base64
import json
import re
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from dibs.errors import BackendUnavailable, Forbidden, NotConfigured
from dibs.stores.kubernetes import access, credentials
from dibs.sync import connect
from tests.servers.certificates import key_of, self_signed
from tests.servers.kube import ADMIN, KubeServer
from tests.stores.kubernetes.configs import kubeconfig
from tests.stores.kubernetes.proxies import HttpProxy

VARIABLES = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*VARIABLES, *PROXIES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", tmp_path / "serviceaccount")


def try_once(url: str) -> None:
    """One try to acquire a lock."""
    with connect(url) as client:
        client.lock("a").acquire(wait=0)


def works(url: str) -> None:
    with connect(url) as client, client.lock("access", ttl=5, wait=10):
        """Got in."""


def names_in(server: KubeServer, namespace: str) -> list[str]:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    return [each["metadata"]["name"] for each in server.request("GET", path).body["items"]]


# -- in a pod ----------------------------------------------------------------------------------------


@pytest.fixture
def pod(kube_server: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a service account, in a pod of the shared cluster."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text(f"{ADMIN}\n")
    (folder / "namespace").write_text("the-pods-own")
    (folder / "ca.crt").write_bytes(kube_server.ca.read_bytes())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", kube_server.https_url.rpartition(":")[2])
    return folder


def test_in_a_pod(kube_server: KubeServer, pod: Path) -> None:
    works("kubernetes://")
    assert names_in(kube_server, "the-pods-own") == ["dibs-lock.access"]
    works("kubernetes://pods-other")
    assert names_in(kube_server, "pods-other") == ["dibs-lock.access"]


def test_a_token_that_changes_is_read_again(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pod / "token").write_text("outdated")
    with connect("kubernetes://") as client:
        with pytest.raises(Forbidden, match=re.escape(str(pod / "token"))) as refusal:
            client.lock("rotated").acquire(wait=0)
        assert "outdated" not in str(refusal.value)
        (pod / "token").write_text(ADMIN)
        with client.lock("rotated"):
            """After a 401 at once."""
        (pod / "token").write_text("wrong")
        with client.lock("rotated"):
            """Known for a minute."""
        monkeypatch.setattr(credentials, "READ_EVERY", 0.0)
        with pytest.raises(Forbidden):
            client.lock("rotated").acquire(wait=0)


# -- kubeconfig --------------------------------------------------------------------------------------


def test_several_files_are_one(
    kube_server: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes first counts, and paths are relative to the file that names them."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "ca.pem").write_bytes(kube_server.ca.read_bytes())
    (folder / "token").write_text(ADMIN)
    kubeconfig(
        folder / "config",
        kube_server.https_url,
        cluster={"certificate-authority": "ca.pem"},
        user={"tokenFile": "token"},
        namespace="several",
    )
    first = {
        "current-context": "mine",
        "contexts": [{"name": "mine", "context": {"cluster": "kube", "user": "me"}}],
    }
    (tmp_path / "first.yaml").write_text(json.dumps(first))
    files = [tmp_path / "first.yaml", tmp_path / "missing", folder / "config"]
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, files)))
    works("kubernetes://several-first")
    works("kubernetes://?context=test")
    assert names_in(kube_server, "several") == ["dibs-lock.access"]


def test_the_file_of_the_home_directory_in_real_yaml(
    kube_server: KubeServer, tmp_path: Path
) -> None:
    authority = base64.b64encode(kube_server.ca.read_bytes()).decode()
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(f"""\
apiVersion: v1
kind: Config
current-context: home
clusters:
- name: home
  cluster:
    server: {kube_server.https_url}
    certificate-authority-data: {authority}
contexts:
- {{name: home, context: {{cluster: home, user: admin, namespace: by-home}}}}
users:
- name: admin
  user:
    token: {ADMIN}
""")
    works("kubernetes://")
    assert "dibs-lock.access" in names_in(kube_server, "by-home")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "set KUBECONFIG"),
        ("a: [s3cret", "is no YAML: see line 1"),
        ("[1]", "is no kubeconfig"),
        ("{}", "names no current-context"),
        ('{"current-context": "x", "contexts": []}', "has no context 'x'; it has none"),
    ],
)
def test_a_kubeconfig_that_is_wrong(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    with pytest.raises(NotConfigured, match=re.escape(said)) as refusal:
        try_once(f"kubernetes://?kubeconfig={file}")
    assert str(file) in str(refusal.value)
    assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("cluster", "user", "said"),
    [
        ({"server": "kube:6443"}, {}, "no server: https://host:port"),
        ({"proxy-url": "socks5://h:1"}, {}, "socks5:// is not supported"),
        ({}, {"username": "me", "password": "s3cret"}, "logs in by username"),
        ({}, {"tokenFile": "/nowhere/token"}, "/nowhere/token can't be read"),
        ({}, {"token": "s3cret\nline"}, "is no token"),
        ({}, {"exec": {"apiVersion": "v0", "command": "x"}}, "supported: client.auth"),
        (
            {},
            {
                "exec": {
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "command": "no-such-plugin",
                    "installHint": "Install it so.",
                }
            },
            "no-such-plugin is not installed. Install it so.",
        ),
        ({"certificate-authority-data": "%"}, {}, "is not base64"),
        ({"certificate-authority": "no.pem"}, {}, "no.pem"),
    ],
)
def test_settings_that_are_wrong(
    tmp_path: Path, cluster: dict[str, str], user: dict[str, object], said: str
) -> None:
    config = kubeconfig(tmp_path / "config", "https://127.0.0.1:1", cluster=cluster, user=user)
    with pytest.raises(NotConfigured, match=re.escape(said)) as refusal:
        try_once(f"kubernetes://?kubeconfig={config}")
    assert "s3cret" not in str(refusal.value)


PLUGIN = """\
#!{python}
import json, os, sys, time
folder = os.path.dirname(__file__)
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
with open(folder + "/runs", "a") as runs:
    print(json.dumps([sys.argv[1:], os.environ["PLUGIN"], info]), file=runs)
status = {{"token": open(folder + "/token").read()}}
if sys.argv[1] == "short":
    status["expirationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ")
print(json.dumps({{"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}}))
"""


def test_an_exec_plugin(kube_server: KubeServer, tmp_path: Path) -> None:
    (tmp_path / "plugin").write_text(PLUGIN.format(python=sys.executable))
    (tmp_path / "plugin").chmod(0o755)

    def url(kind: str, **cluster: str) -> str:
        plugin = {
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "command": "./plugin",
            "args": [kind],
            "env": [{"name": "PLUGIN", "value": "by env"}],
            "provideClusterInfo": True,
        }
        config = tmp_path / f"config-{kind}"
        kubeconfig(config, kube_server, cluster=cluster, user={"exec": plugin})
        return f"kubernetes://plugged?kubeconfig={config}"

    def runs() -> list[str]:
        return (tmp_path / "runs").read_text().splitlines()

    (tmp_path / "token").write_text(ADMIN)
    with connect(url("long")) as client:
        for _ in range(3):
            with client.lock("a"):
                """Once is enough."""
        assert len(runs()) == 1
        arguments, variable, info = json.loads(runs()[0])
        assert (arguments, variable) == (["long"], "by env")
        assert info["spec"]["cluster"]["server"] == kube_server.url
    (tmp_path / "token").write_text("wrong")
    with connect(url("long")) as client:
        with pytest.raises(Forbidden, match="exec plugin"):
            client.lock("a").acquire(wait=0)
        (tmp_path / "token").write_text(ADMIN)
        with client.lock("a"):
            """It was run again after the 401."""
    with HttpProxy() as proxy, connect(url("proxied", **{"proxy-url": proxy.url})) as client:
        client.lock("a").acquire(wait=0).release()
        proxy.answers.append(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")
        before = proxy.connections
        client.lock("a").acquire(wait=0).release()
        assert proxy.connections == before + 1  # the client certificate may be a new one, too
    before = len(runs())
    with connect(url("short")) as client, client.lock("a"):
        """What expires at once is made for each call."""
    assert len(runs()) - before >= 2


SLOW_PLUGIN = """\
#!/bin/sh
echo run >> "${{0%/*}}/runs"
sleep 1.5
{then}
"""


def slow(server: KubeServer, folder: Path, then: str) -> str:
    """The URL of a user whose plugin takes 1.5 s."""
    (folder / "plugin").write_text(SLOW_PLUGIN.format(then=then))
    (folder / "plugin").chmod(0o755)
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}
    config = kubeconfig(folder / "config", server, user={"exec": plugin})
    return f"kubernetes://slow?kubeconfig={config}"


def test_an_exec_plugin_may_take_longer_than_a_call(
    kube_server: KubeServer, tmp_path: Path
) -> None:
    """A call that gave up leaves the plugin at work, for the next one."""
    said = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": ADMIN},
    }
    url = slow(kube_server, tmp_path, f"echo '{json.dumps(said)}'")
    tries: list[BackendUnavailable | None] = []
    with connect(url, call_timeout=1) as client:
        while not tries or (tries[-1] is not None and len(tries) < 4):
            try:
                client.lock("a").acquire(wait=0).release()
                tries.append(None)
            except BackendUnavailable as error:
                tries.append(error)
    assert len(tries) in (2, 3)
    assert tries[-1] is None
    assert (tmp_path / "runs").read_text().split() == ["run"]


async def test_an_exec_plugin_that_fails_late_is_told_once(
    kube_server: KubeServer, tmp_path: Path
) -> None:
    plugin = slow(kube_server, tmp_path, "exit 3").partition("=")[2]
    options = json.loads(Path(plugin).read_text())["users"][0]["user"]["exec"]
    made = credentials.ExecPlugin(options | {"command": f"{tmp_path}/plugin"}, {})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(made.header(), 0.2)
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    for runs in (1, 2):
        with pytest.raises(NotConfigured, match="status 3"):
            await made.header()
        assert len((tmp_path / "runs").read_text().split()) == runs


# -- TLS and proxies ---------------------------------------------------------------------------------


def test_a_server_that_nobody_vouches_for(kube_server: KubeServer, tmp_path: Path) -> None:
    config = kubeconfig(tmp_path / "config", kube_server.https_url)
    url = f"kubernetes://tls?kubeconfig={config}"
    with pytest.raises(BackendUnavailable, match="its certificate is not trusted"):
        try_once(url)
    kubeconfig(config, kube_server.https_url, cluster={"insecure-skip-tls-verify": True})
    works(url)
    trusted = {"certificate-authority": str(kube_server.ca)}
    kubeconfig(config, kube_server.https_url, cluster=trusted | {"tls-server-name": "other.test"})
    with pytest.raises(BackendUnavailable, match=r"other\.test"):
        try_once(url)


class Refusing(BaseHTTPRequestHandler):
    """A server that lets nobody in, after it has seen a client certificate."""

    def do_GET(self) -> None:
        self.send_error(401)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("is_data", [False, True])
def test_a_client_certificate(tmp_path: Path, *, is_data: bool) -> None:
    """The API server of these tests goes by tokens, so another server asks for it."""
    client, other, front = (self_signed(tmp_path / f"{name}.pem") for name in ("a", "b", "front"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client)
    context.load_cert_chain(front, key_of(front))
    context.verify_mode = ssl.CERT_REQUIRED
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def url(pem: Path | None) -> str:
        user = {"token": ADMIN}
        if pem is not None and is_data:
            for name, file in (("certificate", pem), ("key", key_of(pem))):
                user[f"client-{name}-data"] = base64.b64encode(file.read_bytes()).decode()
        elif pem is not None:
            user |= {"client-certificate": str(pem), "client-key": str(key_of(pem))}
        config = tmp_path / f"config-{pem and pem.name}"
        cluster = {"certificate-authority": str(front)}
        kubeconfig(config, f"https://localhost:{server.server_port}", cluster=cluster, user=user)
        return f"kubernetes://certified?kubeconfig={config}"

    with pytest.raises(Forbidden):
        try_once(url(client))
    for wrong in (None, other):
        with pytest.raises(BackendUnavailable, match="check the client certificate"):
            try_once(url(wrong))
    server.shutdown()
    server.server_close()


def test_a_proxy_of_the_kubeconfig(kube_server: KubeServer, tmp_path: Path) -> None:
    with HttpProxy() as proxy:
        login = proxy.url.replace("//", "//me:s%3Acret@")
        secure = {"certificate-authority": str(kube_server.ca), "proxy-url": login}
        config = kubeconfig(tmp_path / "config", kube_server.https_url, cluster=secure)
        works(f"kubernetes://proxied?kubeconfig={config}")
        assert set(proxy.methods) == {"CONNECT"}
        assert base64.b64decode(proxy.logins[0].rpartition(" ")[2]) == b"me:s:cret"
        kubeconfig(config, kube_server, cluster={"proxy-url": proxy.url})
        works(f"kubernetes://proxied?kubeconfig={config}")
        assert {"GET", "PUT"} <= set(proxy.methods)


def test_a_proxy_of_the_environment(
    kube_server: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the proxy knows the server's name."""
    port = kube_server.https_url.rpartition(":")[2]
    cluster = {"certificate-authority": str(kube_server.ca), "tls-server-name": "localhost"}
    config = kubeconfig(tmp_path / "config", f"https://api.kube.invalid:{port}", cluster=cluster)
    url = f"kubernetes://proxied?kubeconfig={config}"
    with HttpProxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        works(url)
        assert set(proxy.methods) == {"CONNECT"}
        for exception in (".kube.invalid", "10.0.0.0/8,kube.invalid", "*"):
            monkeypatch.setenv("NO_PROXY", exception)
            asked = len(proxy.methods)
            with pytest.raises(BackendUnavailable):
                try_once(url)
            assert len(proxy.methods) == asked, "another way was taken"
