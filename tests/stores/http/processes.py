"""The service as a process of its own."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.servers.ports import HOST
from tests.servers.process import ServerProcess
from tests.servers.server import Server

_KEY = re.compile(r"dibs_[\w-]+")


class DibsServer(Server):
    """`dibs serve`. Those of one `store` are servers of one service; the first is told the first key.

    `options` are further ones of that command, `program` is what runs it in another way than it is installed.
    """

    PORT_IS_TAKEN = "can't listen"

    def __init__(
        self,
        folder: Path,
        store: str,
        key: str = "",
        *,
        options: Sequence[str | Path] = (),
        program: Sequence[str | Path] = ("-m", "dibs"),
    ) -> None:
        super().__init__(folder)
        self.store = store
        self.key = key
        self._options = tuple(options)
        self._program = tuple(program)

    @property
    def url(self) -> str:
        """With an administrator's key."""
        return f"http://{self.key}@{HOST}:{self.port}"

    def _launch(self) -> ServerProcess:
        listen = f"{HOST}:{self.port}"
        command = [sys.executable, *self._program, "serve", "--listen", listen]
        process = ServerProcess([*command, "--leases", self.store, *self._options], log=self._log)
        self._begun = self._log.read_text().count("Listening")
        return process

    @property
    def _log(self) -> Path:
        return self.folder / f"{self.port}.log"

    def _answers(self) -> bool:
        told = self._log.read_text()
        if told.count("Listening") <= self._begun:
            return False
        found = _KEY.search(told)
        self.key = self.key or (found[0] if found else "")
        return True
