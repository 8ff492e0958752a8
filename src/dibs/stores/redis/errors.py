"""Errors of a server as those of Dibs, with what to do: never with a password in them."""

from collections.abc import Callable

from dibs.errors import (
    BackendUnavailable,
    DibsError,
    Forbidden,
    IncompatibleVersion,
    NotConfigured,
)
from dibs.stores.redis.url import Endpoint

RIGHTS = (
    "~dibs:* &dibs:inbox:NAME:* +fcall +function|load +time +get +set +mget +del +pexpire +hmget +hset +hdel"
    " +zadd +zrem +zrange +zrank +zcount +publish +subscribe +ping +scan"
)
"""All that the user NAME needs in an ACL; on a Cluster also `+cluster|slots +asking`, by Sentinel `+role`.

Redis 6 has no Functions: there `+evalsha +script|load` replace `+fcall +function|load`.
"""

type Kind = Callable[[str], DibsError]

_CODES: dict[Kind, dict[str, str]] = {
    Forbidden: {
        "NOAUTH": "Redis requires a password. Add it to the URL: redis://:PASSWORD@host "
        "(or redis://USER:PASSWORD@host with ACLs)",
        "WRONGPASS": "Redis rejects this user name and password. Check the URL; "
        "an administrator can run `ACL LIST`",
        "NOPERM": f"this user's ACL does not allow it; a user NAME needs: {RIGHTS}",
        "DENIED": "protected mode is on: set a password, or bind it to an address that only you reach",
    },
    BackendUnavailable: {
        "READONLY": "it is a replica, as after a failover: name its master, or let Sentinels find it",
        "LOADING": "it is still loading its data: it will be there soon",
        "MASTERDOWN": "it is a replica that has lost its master",
        "CLUSTERDOWN": "the Cluster is down: see `CLUSTER INFO` for slots that nobody serves",
        "TRYAGAIN": "a slot is moving to another node: it will be there soon",
        "OOM": "it is out of memory: raise `maxmemory`, and keep `maxmemory-policy noeviction`",
        "BUSY": "a script has been running for long: see `SCRIPT KILL` and `FUNCTION KILL`",
        "MISCONF": "it can't write its data to disk and refuses to change any: see its log",
        "NOREPLICAS": "too few replicas are in touch for `min-replicas-to-write`",
    },
    NotConfigured: {
        "MOVED": "it is a node of a Cluster: add ?cluster=true to the URL",
        "CROSSSLOT": "it is a node of a Cluster: add ?cluster=true to the URL",
    },
}
"""By the first word of what the server said."""

_PHRASES: dict[Kind, dict[str, str]] = {
    Forbidden: {
        "without any password configured": "a password was given, and it has none: leave it out, "
        "or set one there",
        "invalid password": "Redis rejects this password",
    },
    NotConfigured: {
        "cluster support disabled": "it is no Cluster: leave out cluster=true",
        "DB index": "it has no such database",
        "'SENTINEL'": "it is no Sentinel: name the Sentinels' addresses, or leave out sentinel=",
    },
    IncompatibleVersion: {
        "unknown command": "Redis 6.2, Valkey 7.2 or newer is needed",
        "compiling script": "it can't run our script; Redis 6.2 or newer can",
    },
}
"""By a part of it, where the first word tells nothing."""


def code_of(answer: BaseException) -> str:
    """The first word of an error that a server answered with."""
    return str(answer).partition(" ")[0]


def explain(answer: BaseException, endpoint: Endpoint) -> DibsError:
    """The error that callers see, for what the server said."""
    said = str(answer).partition(", with args")[0]  # which may be a password
    code, _, rest = said.partition(" ")
    if code == "DIBSFORMAT":  # our own
        return IncompatibleVersion(f"{endpoint}: {rest}")
    for kind, meanings in _CODES.items():
        if code in meanings:
            return kind(f"{endpoint}: {meanings[code]} ({said})")
    for kind, meanings in _PHRASES.items():
        for phrase, meaning in meanings.items():
            if phrase in said:
                return kind(f"{endpoint}: {meaning} ({said})")
    return BackendUnavailable(f"{endpoint} answered: {said}")


def unreachable(error: Exception, endpoint: Endpoint, *, encrypted: bool) -> DibsError:
    """No connection could be made, with TLS or without."""
    if isinstance(error, DibsError):
        return error
    why = "it did not answer in time" if isinstance(error, TimeoutError) else str(error)
    hint = "check that the server runs, and the host, port and firewall"
    if endpoint.path:
        hint = "is it running, and may this user write to that socket?"
    elif type(error).__name__ == "SSLCertVerificationError":
        hint = "name the CA with ssl_ca_certs=FILE, and the host as the certificate has it"
    elif type(error).__name__ == "SSLError":
        hint = "does this port speak TLS? redis:// does not, rediss:// does"
    elif isinstance(error, TimeoutError) and encrypted:
        hint += "; does this port speak TLS? redis:// does not, rediss:// does"
    elif _is_hang_up(error):
        hint = "does this port speak TLS? redis:// does not, rediss:// does"
    failure = BackendUnavailable(f"{endpoint} can't be reached: {why}; {hint}")
    failure.__cause__ = error
    return failure


def _is_hang_up(error: Exception) -> bool:
    """The other side closed the connection instead of answering."""
    silent = isinstance(error, ConnectionError | EOFError)
    return silent and not isinstance(error, ConnectionRefusedError)


def broken(error: Exception, endpoint: Endpoint) -> DibsError:
    """A connection broke in the middle of a call: whether it was applied is unknown."""
    if isinstance(error, DibsError):
        return error
    why = "did not answer in time" if isinstance(error, TimeoutError) else f"hung up: {error}"
    failure = BackendUnavailable(f"{endpoint} {why}; check the server and the network")
    failure.__cause__ = error
    return failure
