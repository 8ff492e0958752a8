"""What all tests have: the servers of `tests/servers`."""

pytest_plugins = ["tests.servers.fixtures"]
