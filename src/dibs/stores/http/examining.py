"""What to know about the service before one relies on it: asked of the service itself."""

from collections.abc import Sequence

from dibs.model import Finding
from dibs.stores.http.names import decoded
from dibs.stores.http.settings import Settings
from dibs.stores.http.url import is_here
from dibs.stores.http.wire import About, Ttls


def findings(about: About, ttls: Ttls, settings: Settings) -> Sequence[Finding]:
    """Who the service is, what this key may do there, for how long, and how it is reached."""
    told = f"Dibs {about.version}, server {about.server}, format {about.format}"
    return [Finding("server", "ok", told), _key(about), _ttl(ttls), _way(settings)]


def _key(about: About) -> Finding:
    who = f"{about.name} (key {about.key})"
    if not (about.scopes and about.directories):
        advice = "`dibs keys create` on the server makes one with scopes and directories"
        return Finding("key", "problem", f"{who} may do nothing", advice)
    told = f"{who}: scopes {', '.join(about.scopes)} {_where(about.directories)}"
    return Finding("key", "ok", told)


def _ttl(ttls: Ttls) -> Finding:
    told = f"this service grants {ttls.min_ttl:g} to {ttls.max_ttl:g} seconds"
    return Finding("ttl", "ok", told, least_ttl=ttls.min_ttl)


def _where(directories: Sequence[str]) -> str:
    if not all(directories):
        return "for all names"
    names = (decoded(each).decode("utf-8", "backslashreplace") for each in directories)
    return f"below {', '.join(names)}"


def _way(settings: Settings) -> Finding:
    if settings.tls is not None:
        return Finding("encryption", "ok", "TLS, and the server's certificate is checked")
    told = "none: anyone on the network path can read the traffic"
    if is_here(settings.host):
        told = f"none, and none needed: {settings.host} is this machine"
    return Finding("encryption", "note", told)
