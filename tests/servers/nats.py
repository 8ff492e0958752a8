"""A NATS server for one test."""

import json
import socket
from pathlib import Path
from typing import Any

from tests.servers.binaries import nats_program
from tests.servers.ports import HOST
from tests.servers.server import Server


class NatsServer(Server):
    """A NATS with JetStream on a free loopback port. A restarted server has its streams.

    `config` is the text of its configuration file.
    """

    PORT_IS_TAKEN = "address already in use"
    SCHEME = "nats"

    def __init__(self, folder: Path, *, config: str = "", jetstream: bool = True) -> None:
        super().__init__(folder)
        self.program = nats_program()
        self.config = config
        self.jetstream = jetstream

    def info(self) -> dict[str, Any]:
        """Return the server's greeting: its name, version and features."""
        with socket.create_connection((HOST, self.port), timeout=5) as connection:
            with connection.makefile("rb") as lines:
                word, _, text = lines.readline().partition(b" ")
        assert word == b"INFO", word
        return dict(json.loads(text))

    def _command(self) -> list[str | Path]:
        command: list[str | Path] = [self.program.path, "--addr", HOST, "--port", str(self.port)]
        command += ["--name", str(self.folder), "--store_dir", self.folder / "data"]
        if self.jetstream:
            command.append("--jetstream")
        if self.config:
            path = self.folder / "nats.conf"
            path.write_text(self.config)
            command += ["--config", path]
        return command

    def _answers(self) -> bool:
        try:
            return bool(self.info().get("server_name") == str(self.folder))
        except (OSError, AssertionError):
            return False
