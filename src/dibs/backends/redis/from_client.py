"""Settings out of a client of redis-py's: standalone, Sentinel or Cluster, of either world.

Only its settings are used, never its connections: those may send a script again by themselves, decode
what they read, or be all in use just when a lease must be renewed.
"""

from collections.abc import Mapping
from typing import Any

from dibs.backends.redis.settings import (
    CONNECT_TIMEOUT,
    PORT,
    SENTINEL_PORT,
    TIMEOUT,
    Endpoint,
    Login,
    Settings,
    Tls,
)
from dibs.backends.redis.tls import context_of
from dibs.errors import NotConfigured

_NOT_HONOURED = (
    "redis_connect_func",
    "ssl_validate_ocsp",
    "ssl_validate_ocsp_stapled",
    "ssl_include_verify_flags",
    "ssl_exclude_verify_flags",
    "ssl_ciphers",
    "ssl_min_version",
)
"""What would be safer, or a different login, with them: refused rather than left out in silence."""


def read_client(client: Any) -> Settings:
    """The settings of a client. Raises `NotConfigured` for one that can't be followed."""
    nodes, pool = getattr(client, "nodes_manager", None), getattr(client, "connection_pool", None)
    if nodes is not None:
        known = {**getattr(nodes, "connection_kwargs", {}), **_kwargs_of_cluster(client)}
        known.pop("redis_connect_func", None)  # its own, which asks for nothing but READONLY
        found = [Endpoint(each.host, int(each.port)) for each in nodes.startup_nodes.values()]
        return _settings(known, tuple(found), topology="cluster")
    if pool is None or not hasattr(pool, "connection_kwargs"):
        raise NotConfigured(
            f"client= is a {type(client).__name__}: give a client of redis-py's (redis.Redis, "
            "redis.asyncio.Redis, RedisCluster), or a URL"
        )
    known = pool.connection_kwargs
    if hasattr(pool, "sentinel_manager"):
        if not pool.is_master:
            raise NotConfigured("client= reads from replicas: make it with master_for(…)")
        return _of_sentinels(pool, known)
    if "path" in known:
        return _settings(known, (Endpoint("", 0, str(known["path"])),))
    server = Endpoint(known.get("host") or "localhost", int(known.get("port") or PORT))
    return _settings(known, (server,), encrypted=_is_encrypted(pool))


def _kwargs_of_cluster(client: Any) -> Mapping[str, Any]:
    """An asyncio Cluster has them itself."""
    found = getattr(client, "connection_kwargs", {})
    return found if isinstance(found, Mapping) else {}


def _of_sentinels(pool: Any, known: Mapping[str, Any]) -> Settings:
    sentinels = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
    found = [
        Endpoint(s.get("host", "localhost"), int(s.get("port", SENTINEL_PORT))) for s in sentinels
    ]
    return _settings(
        known,
        tuple(found),
        topology="sentinel",
        service=str(pool.service_name),
        sentinel_login=_login(sentinels[0]),
        encrypted=_is_encrypted(pool),
    )


def _is_encrypted(pool: Any) -> bool:
    return "SSL" in pool.connection_class.__name__


def _settings(
    known: Mapping[str, Any],
    endpoints: tuple[Endpoint, ...],
    *,
    encrypted: bool = False,
    topology: str = "server",
    **more: Any,
) -> Settings:
    refused = [name for name in _NOT_HONOURED if known.get(name)]
    if refused:
        raise NotConfigured(
            f"client= sets {', '.join(refused)}, which Dibs's own connections can't honour: "
            "give a URL"
        )
    encrypted = encrypted or bool(known.get("ssl")) or "SSL" in str(known.get("connection_class"))
    scheme = "rediss" if encrypted else "redis"
    options = {"cluster": "?cluster=true", "sentinel": f"?sentinel={more.get('service')}"}
    db = int(known.get("db") or 0)
    hosts = ",".join(map(str, endpoints))
    return Settings(
        shown=f"{scheme}://{hosts}/{db}{options.get(topology, '')}",
        endpoints=endpoints,
        topology=topology,  # type: ignore[arg-type]
        login=_login(known),
        db=db,
        protocol=3 if str(known.get("protocol")) == "3" else 2,
        tls=_tls(known) if encrypted else None,
        connect_timeout=known.get("socket_connect_timeout") or CONNECT_TIMEOUT,
        timeout=known.get("socket_timeout") or TIMEOUT,
        **more,
    )


def _login(known: Mapping[str, Any]) -> Login:
    provider = known.get("credential_provider")
    if provider is not None:
        return lambda: _pair(*provider.get_credentials())
    login = str(known.get("username") or ""), str(known.get("password") or "")
    return lambda: login


def _pair(*given: str) -> tuple[str, str]:
    """A provider gives a user's name and a password, or a password only."""
    return ("", given[0]) if len(given) == 1 else (given[0], given[1])


def _tls(known: Mapping[str, Any]) -> Tls:
    return context_of(
        ca=known.get("ssl_ca_certs"),
        ca_folder=known.get("ssl_ca_path"),
        ca_data=known.get("ssl_ca_data"),
        cert=known.get("ssl_certfile"),
        key=known.get("ssl_keyfile"),
        password=known.get("ssl_password"),
        verify=str(known.get("ssl_cert_reqs", "required"))
        not in ("none", "None", "0", "CERT_NONE"),
        check_name=bool(known.get("ssl_check_hostname", True)),
    )
