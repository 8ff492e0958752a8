"""Which store is used where none is named."""

import os
import warnings
from pathlib import Path

from dibs.errors import ImplicitStoreWarning, NotConfigured
from dibs.fork import FreshLock
from dibs.hub import Hub, hub_for, implicit_url
from dibs.overrides import overridden
from dibs.settings_stores import configured_store
from dibs.stores import hub_by_settings

_lock = FreshLock()
_said: "tuple[DefaultStore, ...]" = ()
"""Stack of default stores that were set explicitly; the last one is in use."""


class DefaultStore:
    """A default store that was set explicitly, from `begin` to `end` or `set_default`.

    Then the previous default applies again, whichever of several ends first.
    """

    __slots__ = ("_begun", "hub")

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._begun = False

    def begin(self) -> None:
        """Make it the default. A second call changes nothing, also after `set_default`."""
        global _said
        with _lock.held:
            if not self._begun:
                self._begun = True
                _said = (*_said, self)

    def end(self) -> None:
        """It is the default no longer."""
        global _said
        with _lock.held:
            self._begun = False
            _said = tuple(each for each in _said if each is not self)


def default_hub() -> Hub:
    """An override, else what was said last, $DIBS_URL, the settings file, the implicit store."""
    return overridden(None) or _last_said() or hub_by_settings(None, _implicit)


def default_is_named() -> bool:
    """Whether the default store is one that somebody named, and not the implicit one."""
    return bool(overridden(None) or _last_said() or configured_store())


def _last_said() -> Hub | None:
    said = _said  # which another thread may replace
    return said[-1].hub if said else None


def _implicit() -> Hub:
    url = implicit_url()
    how = "Set DIBS_URL to a shared store, such as redis://host or postgresql://host/db."
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        raise NotConfigured(f"No store is set. A file only excludes processes in this pod. {how}")
    required = os.environ.get("DIBS_REQUIRE")
    if required not in (None, "", "cluster"):
        raise NotConfigured(f"DIBS_REQUIRE is {required!r}: the only allowed value is cluster")
    if required:
        raise NotConfigured(f"DIBS_REQUIRE=cluster, and no store is set. {how}")
    warnings.warn(
        f"DIBS_URL is not set. Using {url.removeprefix('sqlite:///')}, which only excludes your own "
        "processes on this host. For several hosts, set DIBS_URL to Redis or PostgreSQL.",
        ImplicitStoreWarning,
        skip_file_prefixes=(str(Path(__file__).parent),),
    )
    return hub_for(url)


def set_default_hub(hub: Hub | None) -> None:
    """What bare primitives use from now on; None for what they would use by themselves."""
    global _said
    with _lock.held:
        _said = () if hub is None else (DefaultStore(hub),)
