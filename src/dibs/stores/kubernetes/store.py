"""The store, its URL, and what it promises."""

import re
from collections.abc import Callable

from dibs.clock import Clock
from dibs.errors import NotConfigured
from dibs.model import Capabilities
from dibs.stores.cas.cells import Cells
from dibs.stores.cas.clock import SKEW, StoreClock
from dibs.stores.cas.store import CasStore
from dibs.stores.kubernetes.access import Access, find_access
from dibs.stores.kubernetes.cells import KubernetesCells
from dibs.stores.url_options import duration, read_options, text

_OPTIONS = {"context": text, "kubeconfig": text, "skew": duration}

_FORM = re.compile(
    r"kubernetes:(?://(?P<namespace>[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?/?)?(?:\?(?P<options>[^#]*))?"
)


class KubernetesStore(CasStore):
    """Leases in a Kubernetes cluster, as Lease objects.

    | URL | |
    |---|---|
    | `kubernetes://` | in a pod its own cluster and namespace, else what `kubectl` uses |
    | `kubernetes://team-a` | another namespace |
    | `kubernetes://team-a?context=staging` | another context of the kubeconfig |
    | `kubernetes://?kubeconfig=/etc/dibs/kubeconfig` | another kubeconfig |

    Option: `skew` (seconds by which the API servers' clocks may differ, default 10).

    `LeaderElection("web")` competes for the Lease `web` with all electors of client-go. An API server takes
    a few hundred writes a second for the whole cluster: this is for leaders, schedulers and locks that are
    held for seconds. It needs the rights of `deploy/kubernetes-rbac.yaml`.

    Kubernetes has no clock that could end leases. Waiters watch for how long an entry stays unchanged. A lone
    try uses the date of the server's answers (`stores/cas/clock.py`). `clock` replaces this process's own in
    tests.
    """

    capabilities: Capabilities = Capabilities(
        scope="cluster",
        clock=False,
        durable=True,
        survives=frozenset({"crash", "reboot", "power-loss"}),
    )

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        form = _FORM.fullmatch(url)
        if form is None:
            raise NotConfigured(
                f"{url}: the URL of a Kubernetes cluster looks like kubernetes://namespace, or kubernetes:// "
                "for the namespace of the pod or context"
            )
        try:
            self._options = read_options(form["options"] or "", _OPTIONS)
            self.skew: float = self._options.get("skew", SKEW)
        except ValueError as error:
            raise NotConfigured(f"{url}: {error}") from None
        self._namespace = form["namespace"] or ""
        super().__init__(url, clock=clock)

    def access(self) -> Access:
        """The cluster and namespace that the URL means here. Raises `NotConfigured`."""
        options = self._options
        return find_access(
            self._namespace, options.get("kubeconfig", ""), options.get("context", "")
        )

    def make_cells(self, clock: StoreClock, now: Callable[[], float]) -> Cells:
        return KubernetesCells(self.url, self.access(), clock, now, self._known)
