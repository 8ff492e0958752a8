"""Address, credentials and TLS settings of the API server, from a kubeconfig or in a pod."""

import os
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import yaml

from dibs.errors import NotConfigured
from dibs.stores.kubernetes.credentials import (
    Credentials,
    ExecPlugin,
    NoCredentials,
    Token,
    TokenFile,
)
from dibs.stores.web.endpoint import WebServer
from dibs.stores.web.proxy import Proxy, proxy_from_environment, read_proxy

if TYPE_CHECKING:
    import ssl

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, the cluster's certificate authority and its namespace."""


class Access(NamedTuple):
    """How to reach the API server, and with which credentials."""

    source: str
    """Where this was read, for messages."""
    server: SplitResult
    namespace: str
    credentials: Credentials
    trust: "Trust"
    server_name: str
    """The name in the server's certificate, if it is not the host."""
    proxy: Proxy | None

    @property
    def endpoint(self) -> WebServer:
        """Where connections go. For a server without TLS it is the proxy, which takes whole URLs."""
        host, port = self.server.hostname or "", self.server.port
        if self.server.scheme == "https":
            return WebServer(host, port or 443, self.trust.context)
        if self.proxy is not None:
            return WebServer(self.proxy.host, self.proxy.port, None)
        return WebServer(host, port or 80, None)

    @property
    def prefix(self) -> str:
        """What each path begins with."""
        path = self.server.path.rstrip("/")
        if self.proxy is not None and self.server.scheme == "http":
            return f"http://{self.server.netloc}{path}"
        return path


class Trust:
    """The TLS settings. They are made anew when a file or the client certificate has changed."""

    def __init__(
        self, cluster: Mapping[str, Any], credentials: Credentials, pairs: Sequence[bytes | Path]
    ) -> None:
        """`pairs`: the client certificate and its key, each as PEM or a file; or nothing."""
        self._ca = _pem(cluster, "certificate-authority")
        self.insecure: bool = bool(cluster.get("insecure-skip-tls-verify"))
        self._credentials = credentials
        self._pairs = pairs
        self._made: tuple[object, ssl.SSLContext] | None = None

    @property
    def authority(self) -> bytes:
        """The certificate authority of the cluster, as PEM; empty for the system's. Raises `OSError`."""
        return b"" if self._ca is None else _read(self._ca)

    def context(self) -> "ssl.SSLContext":
        """The present context. Raises `NotConfigured` if a file can't be used."""
        pairs = self._credentials.certificate or self._pairs
        files = [each for each in (self._ca, *pairs) if isinstance(each, Path)]
        try:
            state = pairs, [file.stat().st_mtime_ns for file in files]
            if self._made is None or self._made[0] != state:
                self._made = state, self._make(pairs)
        except (OSError, ValueError) as error:
            raise NotConfigured(f"a certificate for Kubernetes can't be used: {error}") from error
        return self._made[1]

    def _make(self, pairs: Sequence[bytes | Path]) -> "ssl.SSLContext":
        import ssl

        context = ssl.create_default_context(cadata=self.authority.decode("ascii") or None)
        if self.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if pairs:
            _load_pair(context, b"\n".join(map(_read, pairs)))
        context.set_alpn_protocols(["http/1.1"])
        return context


def _read(pem: bytes | Path) -> bytes:
    return pem.read_bytes() if isinstance(pem, Path) else pem


def _load_pair(context: "ssl.SSLContext", pem: bytes) -> None:
    """Load a certificate and its key. OpenSSL only reads files; other users cannot read this one."""
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)


# -- in a pod -------------------------------------------------------------------------------------


def find_access(namespace: str, kubeconfig: str, context: str) -> Access:
    """Read how the cluster is reached. Raises `NotConfigured`, and never shows a secret.

    `namespace`, `kubeconfig` (a file) and `context` are of the URL, and empty if it does not name them.
    """
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    token = SERVICE_ACCOUNT / "token"
    if host and not kubeconfig and not context and token.exists():
        return _in_cluster(namespace, host, token)
    return _by_kubeconfig(namespace, kubeconfig, context)


def _in_cluster(namespace: str, host: str, token: Path) -> Access:
    port = os.environ.get("KUBERNETES_SERVICE_PORT") or "443"
    url = urlsplit(f"https://{f'[{host}]' if ':' in host else host}:{port}")
    if not namespace:
        try:
            namespace = (SERVICE_ACCOUNT / "namespace").read_text().strip()
        except OSError as error:
            told = f"the pod's namespace can't be read: {error}; write kubernetes://namespace"
            raise NotConfigured(told) from error
    credentials = TokenFile(token)
    trust = Trust({"certificate-authority": SERVICE_ACCOUNT / "ca.crt"}, credentials, ())
    proxy = _proxy("", url, "the environment")
    return Access("the pod's service account", url, namespace, credentials, trust, "", proxy)


# -- kubeconfig -----------------------------------------------------------------------------------


def _by_kubeconfig(namespace: str, kubeconfig: str, context: str) -> Access:
    config = _Kubeconfig(kubeconfig)
    name = context or config.current
    if not name:
        raise config.problem("names no current-context: write kubernetes://?context=NAME")
    chosen = config.entry("context", name)
    cluster = config.entry("cluster", chosen.get("cluster") or "")
    user = config.entry("user", chosen["user"]) if chosen.get("user") else {}
    url = urlsplit(str(cluster.get("server") or ""))
    try:
        is_usable = url.scheme in ("http", "https") and url.hostname and (url.port or 1)
    except ValueError:
        is_usable = False
    if not is_usable:
        raise config.problem(f"gives the cluster of {name!r} no server: https://host:port")
    credentials = _credentials(config, user, cluster)
    pairs = [_pem(user, f"client-{what}") for what in ("certificate", "key")]
    trust = Trust(cluster, credentials, [each for each in pairs if each is not None])
    source = f"the context {name!r} of {config.shown}"
    proxy = _proxy(str(cluster.get("proxy-url") or ""), url, source)
    server_name = str(cluster.get("tls-server-name") or "")
    where = namespace or str(chosen.get("namespace") or "default")
    return Access(source, url, where, credentials, trust, server_name, proxy)


def _credentials(
    config: "_Kubeconfig", user: Mapping[str, Any], cluster: Mapping[str, Any]
) -> Credentials:
    """As client-go does: a token file comes before a token, and a plugin last."""
    if user.get("tokenFile"):
        return TokenFile(user["tokenFile"])
    if user.get("token"):
        return Token(str(user["token"]))
    if user.get("exec"):
        return ExecPlugin(user["exec"], cluster)
    for option in ("username", "password", "auth-provider"):
        if user.get(option):
            raise config.problem(
                f"logs in by {option}, which API servers no longer take: use a token, a client "
                "certificate or an exec plugin"
            )
    return NoCredentials()


def _proxy(configured: str, server: SplitResult, source: str) -> Proxy | None:
    url = configured or proxy_from_environment(server.scheme, server.hostname or "")
    try:
        return read_proxy(url) if url else None
    except ValueError as error:
        raise NotConfigured(f"the proxy of {source}: {error}") from None


PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


class _Kubeconfig:
    """The files that `KUBECONFIG` lists, merged. The first definition of a name wins."""

    def __init__(self, kubeconfig: str) -> None:
        listed = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        names = [kubeconfig] if kubeconfig else listed.split(os.pathsep)
        files = [Path(name).expanduser() for name in names if name]
        self.shown = os.pathsep.join(map(str, files))
        self.current = ""
        self._entries: dict[tuple[str, str], dict[str, Any]] = {}
        found = [file for file in files if file.exists()]
        if not found:
            raise NotConfigured(
                f"no Kubernetes: this is no pod with a service account, and there is no {self.shown}; "
                "set KUBECONFIG, or write kubernetes://namespace?kubeconfig=FILE"
            )
        for file in found:
            try:
                self._add(file, yaml.safe_load(file.read_bytes()) or {})
            except yaml.MarkedYAMLError as error:  # its text can show a token
                line = error.problem_mark.line + 1 if error.problem_mark else 0
                raise NotConfigured(f"{file} is no YAML: see line {line}") from None
            except (OSError, yaml.YAMLError, AttributeError, TypeError, KeyError) as error:
                told = f"{file} is no kubeconfig that can be read: {type(error).__name__}"
                raise NotConfigured(f"{told}; try `kubectl config view`") from None

    def _add(self, file: Path, config: Mapping[str, Any]) -> None:
        self.current = self.current or str(config.get("current-context") or "")
        for kind in ("context", "cluster", "user"):
            for each in config.get(f"{kind}s") or ():
                entry = dict(each.get(kind) or {})
                for option in PATHS:
                    if entry.get(option):
                        entry[option] = file.parent / str(entry[option])
                plugin = entry.get("exec")
                if plugin and "/" in plugin["command"]:
                    entry["exec"] = plugin | {"command": str(file.parent / plugin["command"])}
                self._entries.setdefault((kind, str(each["name"])), entry)

    def entry(self, kind: str, name: str) -> Mapping[str, Any]:
        """The entry of this name. Raises `NotConfigured` if there is none."""
        found = self._entries.get((kind, name))
        if found is None:
            known = ", ".join(sorted(known for each, known in self._entries if each == kind))
            raise self.problem(f"has no {kind} {name!r}; it has {known or 'none'}")
        return found

    def problem(self, told: str) -> NotConfigured:
        """An error about these files."""
        return NotConfigured(f"{self.shown} {told}")


def _pem(options: Mapping[str, Any], name: str) -> bytes | Path | None:
    """The data of a kubeconfig's option (`NAME-data`), or the file that it names."""
    if options.get(f"{name}-data"):
        try:
            return b64decode(options[f"{name}-data"], validate=True)
        except ValueError:
            raise NotConfigured(f"{name}-data of the kubeconfig is not base64") from None
    return options.get(name) or None
