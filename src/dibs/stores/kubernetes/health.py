"""What `dibs doctor` reports about a Kubernetes cluster."""

from collections.abc import Sequence
from http import HTTPStatus
from secrets import token_hex

import msgspec

from dibs.core.names import PROBE
from dibs.errors import DibsError, Forbidden
from dibs.model import Finding
from dibs.stores.kubernetes.access import Access
from dibs.stores.kubernetes.api import KubernetesApi, details_of, is_refusal, message_of
from dibs.stores.kubernetes.objects import lease_name
from dibs.stores.kubernetes.watch import LeaseWatch
from dibs.stores.web.endpoint import is_here

VERBS = ("get", "list", "create", "update", "delete", "watch")

MAKES_SLOWER = {"delete": "idle Leases are never deleted", "list": "`dibs list` does not work"}
"""What lacks without these verbs; without the others Dibs does not work."""


async def examine(api: KubernetesApi) -> Sequence[Finding]:
    """The server, how we get to it and as whom, what we may do there, and encryption."""
    access = api.access
    answer = await api.request("GET", f"{access.prefix}/version")
    version = "of a version that it does not show"
    if answer.status == HTTPStatus.OK:
        version = str(msgspec.json.decode(answer.body).get("gitVersion"))
    via = f", through the proxy {access.proxy.host}:{access.proxy.port}" if access.proxy else ""
    where = f"{access.server.netloc} is Kubernetes {version}{via}"
    who = f"{access.credentials.shown}, by {access.source}"
    return [
        Finding("server", "ok", where),
        Finding("identity", "ok", who),
        *await _rights(api),
        _encryption(access),
    ]


async def _rights(api: KubernetesApi) -> list[Finding]:
    """Try each verb in a dry run: the server looks at rights before all else, whatever grants them.

    Also finds that the namespace does not exist, or takes no Leases, and that watches do not begin.
    """
    namespace = api.access.namespace
    name = lease_name(PROBE)
    one = f"{api.leases}/{name}"
    probe = {"metadata": {"name": name}, "spec": {"leaseDurationSeconds": 1}}
    requests = {
        "get": ("GET", one, None),
        "list": ("GET", f"{api.leases}?limit=1", None),
        "create": ("POST", f"{api.leases}?dryRun=All", probe),
        "update": ("PUT", f"{one}?dryRun=All", probe),
        "delete": ("DELETE", f"{one}?dryRun=All", None),
    }
    place = Finding("namespace", "ok", f"Leases are in {namespace!r}")
    missing, found, tried = [], [], [*VERBS]
    for verb, (method, path, body) in requests.items():
        answer = await api.request(method, path, body)
        told = message_of(answer) if answer.status >= HTTPStatus.BAD_REQUEST else ""
        if answer.status == HTTPStatus.NOT_FOUND and details_of(answer).get("kind") == "namespaces":
            advice = f"kubectl create namespace {namespace}, or name another one in the URL"
            place = Finding("namespace", "problem", told, advice)
        elif answer.status == HTTPStatus.FORBIDDEN and is_refusal(told):
            advice = "see `kubectl describe quota`, and what else the message names"
            found.append(Finding(verb, "problem", f"the server refuses it: {told}", advice))
        elif answer.status == HTTPStatus.FORBIDDEN:
            missing.append(verb)
    try:
        watch = LeaseWatch(api, token_hex(8), lambda _: None, lambda _: None)
        await watch.begin()
        watch.end()
    except Forbidden:
        missing.append("watch")
    except DibsError as error:
        tried.remove("watch")
        advice = "let the proxy pass on answers as they come: until then waiters are woken late"
        told = f"it did not begin in time, and a proxy may buffer it: {error}"
        found.append(Finding("watch", "warning", told, advice))
    return [place, _verbs(tried, missing, f"on Leases in {namespace!r}"), *found]


def _verbs(tried: Sequence[str], missing: Sequence[str], where: str) -> Finding:
    if not missing:
        return Finding("rights", "ok", f"{', '.join(tried)} {where}")
    told = f"no {', '.join(missing)} {where}"
    advice = "apply deploy/kubernetes-rbac.yaml"
    if set(missing) <= MAKES_SLOWER.keys():
        lacks = "; ".join(MAKES_SLOWER[verb] for verb in missing)
        return Finding("rights", "note", f"{told}: {lacks}", advice)
    return Finding("rights", "problem", told, advice)


def _encryption(access: Access) -> Finding:
    if access.server.scheme == "http" and is_here(access.server.hostname or ""):
        told = "none needed: the API server is on this machine"
        return Finding("encryption", "ok", told)
    if access.server.scheme == "http":
        told = "none: anyone on the network path can read and change the traffic"
        return Finding("encryption", "note", told, "use an https:// server in the kubeconfig")
    if access.trust.insecure:
        told = "TLS, but the server's certificate is not checked"
        return Finding("encryption", "warning", told, "remove insecure-skip-tls-verify")
    return Finding("encryption", "ok", "TLS, and the server's certificate is checked")
