"""Ports for servers on the loopback interface."""

import random
import socket

# Below the range that systems draw the local ends of connections from, so that a port is still free
# when its server comes back from a restart; with room for a Redis Cluster's bus, 10,000 above.
LOWEST, HIGHEST = 12_000, 22_000
HOST = "127.0.0.1"

_draw = random.SystemRandom()  # tests may seed the other one, alike in each process


def free_port(*, also: int = 0) -> int:
    """A port that nobody listens on now (and nobody on the one `also` above it).

    Somebody else may take it before the server does: whoever starts the server tries again.
    """
    while True:
        port = _draw.randrange(LOWEST, HIGHEST)
        if _is_free(port) and (not also or _is_free(port + also)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
