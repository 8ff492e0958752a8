"""What a server has counted."""

from typing import Any

from tests.servers.redis import RedisServer


def calls(server: RedisServer) -> dict[str, int]:
    """How often each command was called by clients; those within scripts are counted by Redis too."""
    with server.client() as client:
        stats = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}


def reset(server: RedisServer) -> None:
    with server.client() as client:
        client.config_resetstat()


def ours(server: RedisServer, *, subscribed: bool | None = None) -> list[dict[str, Any]]:
    """Our connections, by the name that they have given themselves."""
    with server.client() as client:
        found = [each for each in client.client_list() if each["name"] == "dibs"]
    if subscribed is None:
        return found
    return [each for each in found if (each["sub"] != "0") is subscribed]
