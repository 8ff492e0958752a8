"""How a cluster is found and reached: kubeconfigs, pods, plugins, TLS and proxies, with real files."""

import base64
import json
import re
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import BackendUnavailable, Forbidden, NotConfigured
from dibs.stores.kubernetes import access, credentials
from dibs.sync import connect
from tests.servers.certificates import key_of, self_signed
from tests.servers.kube import ADMIN, KubeServer
from tests.stores.http.peers import Peer, answer
from tests.stores.kubernetes.configs import kubeconfig
from tests.stores.kubernetes.proxies import HttpProxy
from tests.stores.sides import use

VARIABLES = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*VARIABLES, *PROXIES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", tmp_path / "serviceaccount")


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


@pytest.mark.usefixtures("pod")
def test_in_a_pod(kube_server: KubeServer) -> None:
    use("kubernetes://", wait=10)
    assert names_in(kube_server, "the-pods-own") == ["dibs-lock.a"]
    use("kubernetes://pods-other", wait=10)
    assert names_in(kube_server, "pods-other") == ["dibs-lock.a"]


def test_a_token_that_changes_is_read_again(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pod / "token").write_text("outdated")
    with connect("kubernetes://") as client:
        with pytest.raises(Forbidden, match=re.escape(str(pod / "token"))) as refusal:
            client.lock("rotated").acquire(wait=0)
        assert "outdated" not in str(refusal.value)
        (pod / "token").write_text(ADMIN)
        client.lock("rotated").acquire(wait=0).release()  # after a 401 at once
        (pod / "token").write_text("wrong")
        client.lock("rotated").acquire(wait=0).release()  # known for a minute
        monkeypatch.setattr(credentials, "READ_EVERY", 0.0)
        with pytest.raises(Forbidden):
            client.lock("rotated").acquire(wait=0)


# -- kubeconfig --------------------------------------------------------------------------------------


def test_several_files_are_one_or_it_is_in_the_home_directory(
    kube_server: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes first counts, and paths are relative to the file that names them."""
    folder = tmp_path / ".kube"
    folder.mkdir()
    (folder / "ca.pem").write_bytes(kube_server.ca.read_bytes())
    (folder / "token").write_text(ADMIN)
    (folder / "config").write_text(f"""\
apiVersion: v1
kind: Config
current-context: home
clusters:
- name: home
  cluster: {{server: "{kube_server.https_url}", certificate-authority: ca.pem}}
contexts:
- {{name: home, context: {{cluster: home, user: admin, namespace: by-home}}}}
users:
- name: admin
  user:
    tokenFile: token
""")
    use("kubernetes://", wait=10)
    assert "dibs-lock.a" in names_in(kube_server, "by-home")
    mine = {"name": "mine", "context": {"cluster": "home", "user": "admin"}}
    first = {"current-context": "mine", "contexts": [mine]}
    (tmp_path / "first.yaml").write_text(json.dumps(first))
    files = [tmp_path / "first.yaml", tmp_path / "missing", folder / "config"]
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, files)))
    use("kubernetes://", wait=10)
    assert "dibs-lock.a" in names_in(kube_server, "default")
    use("kubernetes://several?context=home", wait=10)
    assert names_in(kube_server, "several") == ["dibs-lock.a"]


MISSING_PLUGIN = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "command": "no-such-plugin",
    "installHint": "Install it so.",
}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "set KUBECONFIG"),
        ("a: [s3cret", "is no YAML: see line 1"),
        ("[1]", "is no kubeconfig"),
        ("{}", "names no current-context"),
        ('{"current-context": "x", "contexts": []}', "has no context 'x'; it has none"),
        ({"cluster": {"server": "kube:6443"}}, "no server: https://host:port"),
        ({"cluster": {"proxy-url": "socks5://h:1"}}, "socks5:// is not supported"),
        ({"cluster": {"certificate-authority-data": "%"}}, "is not base64"),
        ({"cluster": {"certificate-authority": "no.pem"}}, "no.pem"),
        ({"user": {"username": "me", "password": "s3cret"}}, "logs in by username"),
        ({"user": {"tokenFile": "/nowhere/token"}}, "/nowhere/token can't be read"),
        ({"user": {"token": "s3cret\nline"}}, "is no token"),
        ({"user": {"exec": {"apiVersion": "v0", "command": "x"}}}, "supported: client.auth"),
        ({"user": {"exec": MISSING_PLUGIN}}, "no-such-plugin is not installed. Install it so."),
    ],
)
def test_a_kubeconfig_that_is_wrong(tmp_path: Path, content: Any, said: str) -> None:
    file = tmp_path / "config"
    if isinstance(content, str):
        file.write_text(content)
    elif content is not None:
        kubeconfig(file, "https://127.0.0.1:1", **content)
    with pytest.raises(NotConfigured, match=re.escape(said)) as refusal:
        use(f"kubernetes://?kubeconfig={file}")
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

    def url(kind: str) -> str:
        plugin = {
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "command": "./plugin",
            "args": [kind],
            "env": [{"name": "PLUGIN", "value": "by env"}],
            "provideClusterInfo": True,
        }
        config = kubeconfig(tmp_path / f"config-{kind}", kube_server, user={"exec": plugin})
        return f"kubernetes://plugged?kubeconfig={config}"

    def runs() -> list[str]:
        return (tmp_path / "runs").read_text().splitlines()

    (tmp_path / "token").write_text(ADMIN)
    with connect(url("long")) as client:
        for _ in range(3):
            client.lock("a").acquire(wait=20).release()
        assert len(runs()) == 1, "once is enough"
        arguments, variable, info = json.loads(runs()[0])
        assert (arguments, variable) == (["long"], "by env")
        assert info["spec"]["cluster"]["server"] == kube_server.url
    (tmp_path / "token").write_text("wrong")
    with connect(url("long")) as client:
        with pytest.raises(Forbidden, match="exec plugin"):
            client.lock("a").acquire(wait=20)
        (tmp_path / "token").write_text(ADMIN)
        client.lock("a").acquire(wait=20).release()  # it was run again after the 401
    before = len(runs())
    with connect(url("short")) as client:
        client.lock("a").acquire(wait=20).release()
    assert len(runs()) - before >= 2, "what expires at once is made for each call"


# -- TLS and proxies ---------------------------------------------------------------------------------


def test_a_server_that_nobody_vouches_for(kube_server: KubeServer, tmp_path: Path) -> None:
    config = kubeconfig(tmp_path / "config", kube_server.https_url)
    url = f"kubernetes://tls?kubeconfig={config}"
    with pytest.raises(BackendUnavailable, match="its certificate is not trusted"):
        use(url)
    kubeconfig(config, kube_server.https_url, cluster={"insecure-skip-tls-verify": True})
    use(url, wait=10)
    trusted = {"certificate-authority": str(kube_server.ca)}
    kubeconfig(config, kube_server.https_url, cluster=trusted | {"tls-server-name": "other.test"})
    with pytest.raises(BackendUnavailable, match=r"other\.test"):
        use(url)


def test_a_client_certificate(tmp_path: Path) -> None:
    """The API server of these tests goes by tokens, so another server asks for it, and then refuses."""
    mine, other, front = (self_signed(tmp_path / f"{name}.pem") for name in ("a", "b", "front"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=mine)
    context.load_cert_chain(front, key_of(front))
    context.verify_mode = ssl.CERT_REQUIRED
    with Peer(lambda path, body: answer(401)) as peer:
        peer.socket = context.wrap_socket(peer.socket, server_side=True)

        def connects(**user: str) -> None:
            config = kubeconfig(
                tmp_path / "config",
                f"https://localhost:{peer.port}",
                cluster={"certificate-authority": str(front)},
                user={"token": ADMIN, **user},
            )
            use(f"kubernetes://certified?kubeconfig={config}")

        def files(pem: Path) -> dict[str, str]:
            return {"client-certificate": str(pem), "client-key": str(key_of(pem))}

        inline = {
            f"{name}-data": base64.b64encode(Path(file).read_bytes()).decode()
            for name, file in files(mine).items()
        }
        for user in (files(mine), inline):
            with pytest.raises(Forbidden):
                connects(**user)
        for user in ({}, files(other)):
            with pytest.raises(BackendUnavailable, match="check the client certificate"):
                connects(**user)


def test_a_proxy_of_the_kubeconfig(kube_server: KubeServer, tmp_path: Path) -> None:
    with HttpProxy() as proxy:
        login = proxy.url.replace("//", "//me:s%3Acret@")
        secure = {"certificate-authority": str(kube_server.ca), "proxy-url": login}
        config = kubeconfig(tmp_path / "config", kube_server.https_url, cluster=secure)
        use(f"kubernetes://proxied?kubeconfig={config}", wait=10)
        assert set(proxy.methods) == {"CONNECT"}
        assert base64.b64decode(proxy.logins[0].rpartition(" ")[2]) == b"me:s:cret"


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
        use(url, wait=10)
        assert set(proxy.methods) == {"CONNECT"}
        for exception in (".kube.invalid", "10.0.0.0/8,kube.invalid", "*"):
            monkeypatch.setenv("NO_PROXY", exception)
            asked = len(proxy.methods)
            with pytest.raises(BackendUnavailable):
                use(url)
            assert len(proxy.methods) == asked, "another way was taken"
