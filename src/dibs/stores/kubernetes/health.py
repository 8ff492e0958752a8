"""What `dibs doctor` reports about a Kubernetes cluster."""

from collections.abc import Sequence
from http import HTTPStatus
from secrets import token_hex
from typing import Any, Protocol

import msgspec

from dibs.core.names import PROBE
from dibs.errors import DibsError
from dibs.model import Finding
from dibs.stores.cas.cells import Receive
from dibs.stores.kubernetes.access import Access
from dibs.stores.kubernetes.objects import lease_name
from dibs.stores.web.reading import Response

VERBS = ("get", "list", "create", "update", "delete", "watch")

MAKES_SLOWER = {"delete": "idle Leases are never deleted", "list": "`dibs list` does not work"}
"""What lacks without these verbs; without the others Dibs does not work."""


class Cluster(Protocol):
    """What is asked here."""

    leases: str
    access: Access

    async def request(self, method: str, path: str, body: object = None) -> Response: ...
    async def subscribe(self, inbox: str, receive: Receive) -> Any: ...


async def examine(cluster: Cluster) -> Sequence[Finding]:
    """The server, how we get to it and as whom, what we may do there, and encryption."""
    access = cluster.access
    answer = await cluster.request("GET", f"{access.prefix}/version")
    version = "of a version that it does not show"
    if answer.status == HTTPStatus.OK:
        version = str(msgspec.json.decode(answer.body).get("gitVersion"))
    via = f", through the proxy {access.proxy.host}:{access.proxy.port}" if access.proxy else ""
    where = f"{access.server.netloc} is Kubernetes {version}{via}"
    who = f"{access.credentials.shown}, by {access.source}"
    return [
        Finding("server", "ok", where),
        Finding("namespace", "ok", f"Leases are in {access.namespace!r}"),
        Finding("identity", "ok", who),
        await _rights(cluster),
        _encryption(access),
    ]


async def _rights(cluster: Cluster) -> Finding:
    """Try each verb in a dry run: the server looks at rights before all else, whatever grants them."""
    name = lease_name(PROBE)
    one = f"{cluster.leases}/{name}"
    probe = {"metadata": {"name": name}, "spec": {"leaseDurationSeconds": 1}}
    requests = {
        "get": ("GET", one, None),
        "list": ("GET", f"{cluster.leases}?limit=1", None),
        "create": ("POST", f"{cluster.leases}?dryRun=All", probe),
        "update": ("PUT", f"{one}?dryRun=All", probe),
        "delete": ("DELETE", f"{one}?dryRun=All", None),
    }
    missing = []
    for verb, (method, path, body) in requests.items():
        answer = await cluster.request(method, path, body)
        if answer.status == HTTPStatus.FORBIDDEN:
            missing.append(verb)
    try:
        (await cluster.subscribe(token_hex(8), lambda _: None))()
    except DibsError:
        missing.append("watch")
    where = f"on Leases in {cluster.access.namespace!r}"
    if not missing:
        return Finding("rights", "ok", f"{', '.join(VERBS)} {where}")
    told = f"no {', '.join(missing)} {where}"
    advice = "apply deploy/kubernetes-rbac.yaml"
    if set(missing) <= MAKES_SLOWER.keys():
        lacks = "; ".join(MAKES_SLOWER[verb] for verb in missing)
        return Finding("rights", "note", f"{told}: {lacks}", advice)
    return Finding("rights", "problem", told, advice)


def _encryption(access: Access) -> Finding:
    if access.server.scheme == "http":
        told = "none: anyone on the network path can read and change the traffic"
        return Finding("encryption", "note", told, "use an https:// server in the kubeconfig")
    if access.trust.insecure:
        told = "TLS, but the server's certificate is not checked"
        return Finding("encryption", "warning", told, "remove insecure-skip-tls-verify")
    return Finding("encryption", "ok", "TLS, and the server's certificate is checked")
