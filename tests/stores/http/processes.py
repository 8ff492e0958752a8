"""The service as a process of its own, and several of them behind one address."""

import itertools
import re
import selectors
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

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


class Balancer:
    """Passes each connection on to the next of several servers in turn, or to one that is there."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._turns = itertools.cycle(ports)
        self._tries = len(ports)
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._peers: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._over = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *about: object) -> None:
        self._over = True
        with suppress(OSError), socket.create_connection((HOST, self.port)):
            pass  # so that it looks
        self._thread.join(10)
        for each in (self._listener, *self._peers):
            each.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._over:
            for ready, _ in self._selector.select():
                self._take() if ready.fileobj is self._listener else self._pass(ready.fileobj)

    def _take(self) -> None:
        client, _ = self._listener.accept()
        for port in itertools.islice(self._turns, self._tries):
            with suppress(OSError):
                server = socket.create_connection((HOST, port))
                self._peers |= {client: server, server: client}
                for each in (client, server):
                    self._selector.register(each, selectors.EVENT_READ)
                return
        client.close()

    def _pass(self, ready: object) -> None:
        assert isinstance(ready, socket.socket)
        peer = self._peers.get(ready)
        if peer is None:
            return  # its other end has just gone
        data = b""
        with suppress(OSError):
            data = ready.recv(65536)
            peer.sendall(data)
        if not data:
            for each in (ready, peer):
                self._selector.unregister(each)
                del self._peers[each]
                each.close()
