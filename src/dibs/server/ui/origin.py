"""Whether it is a page of this server's own that asks. A browser says so, and no page can have it lie."""

from dibs.server.api.problems import ApiProblem
from dibs.server.api.routing import Caller

_FETCHED = b"sec-fetch-site"


class Origins:
    """Where this service's pages may come from: this server's own address, and those of its proxies."""

    def __init__(self, others: tuple[str, ...]) -> None:
        self._others = frozenset(each.rstrip("/").lower() for each in others)

    def check_reading(self, caller: Caller) -> None:
        """What is only read. Raises `ApiProblem`, 403, for another site's page.

        A browser too old to tell lets that page ask, but not see the answer.
        """
        if caller.headers.get(_FETCHED, b"none") not in (b"same-origin", b"none"):
            raise _foreign()

    def check_changing(self, caller: Caller) -> None:
        """What changes something. Raises `ApiProblem`, 403, unless a page of this server's own asks."""
        if caller.headers.get(_FETCHED, b"same-origin") != b"same-origin":
            raise _foreign()
        origin = caller.header(b"origin").lower()
        if not origin:
            raise ApiProblem("csrf", "the Origin header is missing: only browsers can sign in")
        if origin not in self._others and origin not in _own(caller):
            raise _foreign()

    def is_secure(self, caller: Caller) -> bool:
        """Whether the browser speaks TLS, be it with a proxy in front."""
        return over_tls(caller) or caller.header(b"origin").startswith("https://")


def over_tls(caller: Caller) -> bool:
    """Whether this request came by TLS, as far as is known."""
    return caller.request.scope.get("scheme") == "https"


def _own(caller: Caller) -> tuple[str, ...]:
    """Addresses of this server, by the name under which it was asked: a proxy may do TLS in front."""
    host = caller.header(b"host").lower()
    schemes = ("https",) if over_tls(caller) else ("https", "http")
    return tuple(f"{scheme}://{host}" for scheme in schemes) if host else ()


def _foreign() -> ApiProblem:
    return ApiProblem(
        "csrf",
        "rejected a request that another site's page sent with your session. If it came from the "
        "dashboard, a proxy in front changes the Host header: see the setting `origins`",
    )
