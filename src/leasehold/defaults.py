"""Which store is used where none is named."""

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leasehold.errors import ImplicitStoreWarning, NotConfigured
from leasehold.hub import Hub, hub_for, implicit_url

_lock = threading.Lock()


def _after_fork() -> None:
    """Another thread of the parent may have held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
_overrides: list[Hub] = []
_default: Hub | None = None
_by_url: dict[str, Hub] = {}


def default_hub() -> Hub:
    """An override, else what `set_default` said, else $LEASEHOLD_URL, else the implicit store."""
    if _overrides:
        return _overrides[-1]
    if _default is not None:
        return _default
    url = os.environ.get("LEASEHOLD_URL")
    hub = _by_url.get(url or "")
    if hub is not None:
        return hub
    with _lock:
        hub = _by_url.get(url or "")
        if hub is None:
            hub = _by_url[url or ""] = hub_for(url) if url else _implicit()
    return hub


def _implicit() -> Hub:
    url = implicit_url()
    where = "LEASEHOLD_URL=sqlite:////absolute/path.db, or leasehold.set_default(url)"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        raise NotConfigured(
            f"this runs in Kubernetes, where a file excludes only one pod: set {where}"
        )
    if os.environ.get("LEASEHOLD_REQUIRE") == "cluster":
        raise NotConfigured(f"LEASEHOLD_REQUIRE=cluster, and no store is named: set {where}")
    warnings.warn(
        f"no store is named, so locks are kept in {url} and exclude only this user on this host: "
        f"set {where}",
        ImplicitStoreWarning,
        skip_file_prefixes=(str(Path(__file__).parent),),
    )
    return hub_for(url)


def set_default_hub(hub: Hub | None) -> None:
    """What bare primitives use from now on; None for what they would use by themselves."""
    global _default
    _default = hub


@contextmanager
def overriding(hub: Hub) -> Iterator[None]:
    """Everything that names no store uses this one meanwhile."""
    _overrides.append(hub)
    try:
        yield
    finally:
        last = len(_overrides) - 1 - _overrides[::-1].index(hub)
        del _overrides[last]
