"""What a server has counted."""

from tests.servers.redis import RedisServer


def calls(server: RedisServer) -> dict[str, int]:
    """How often each command was called by clients; those within scripts are counted by Redis too."""
    with server.client() as client:
        stats = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}


def reset(server: RedisServer) -> None:
    with server.client() as client:
        client.config_resetstat()
