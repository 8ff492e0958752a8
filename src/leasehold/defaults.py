"""Which store is used where none is named."""

import os
import warnings
from pathlib import Path

from leasehold.errors import ImplicitStoreWarning, NotConfigured
from leasehold.fork import FreshLock
from leasehold.hub import Hub, hub_for, implicit_url
from leasehold.overrides import overridden
from leasehold.settings_file import VARIABLE
from leasehold.settings_stores import default_store
from leasehold.stores import opened_by

_lock = FreshLock()
_default: Hub | None = None
_by_setting: dict[str, Hub] = {}
"""By the URL or the file that the environment names; the implicit one by nothing."""


def default_hub() -> Hub:
    """An override, else what `set_default` said, $LEASEHOLD_URL, the settings file, the implicit store."""
    hub = overridden(None) or _default
    if hub is not None:
        return hub
    key = os.environ.get("LEASEHOLD_URL") or os.environ.get(VARIABLE) or ""
    hub = _by_setting.get(key)
    if hub is not None:
        return hub
    with _lock:
        hub = _by_setting.get(key)
        if hub is None:
            found = default_store()
            hub = _by_setting[key] = _implicit() if found is None else opened_by(found)
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
