"""A URL of the shared etcd, with keys that no other test uses."""

from secrets import token_hex

import pytest

from tests.servers.etcd import EtcdServer


@pytest.fixture
def etcd_url(etcd_server: EtcdServer) -> str:
    """The shared etcd, with a prefix of its own."""
    return f"etcd://127.0.0.1:{etcd_server.port}/{token_hex(6)}"
