"""What every server of the tests can do, and what can be done to it."""

import signal
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Self

from tests.servers.ports import HOST, free_port
from tests.servers.process import ServerFailed, ServerProcess

TRIES = 20  # at a port that turned out to be taken


class Server(ABC):
    """A server on a loopback port of its own, whose files lie in `folder`.

    The port stays the same for good, so clients find it again after a kill or a restart.
    """

    PORT_IS_TAKEN: ClassVar[str]  # what its log says then
    SECOND_PORT: ClassVar[int] = 0  # how far above the first one it needs another
    SCHEME: ClassVar[str] = "http"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        """Endpoint for clients."""
        return f"{self.SCHEME}://{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int:
        return self._started.pid

    def start(self) -> Self:
        """Start it and wait until it answers; after a kill that means, until it has recovered."""
        assert not self.running, "it runs"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._prepare()
        if self.port:
            self._start()
            return self
        for _ in range(TRIES):
            self.port = free_port(also=self.SECOND_PORT)
            try:
                self._start()
            except ServerFailed as failure:
                self.port = 0
                if self.PORT_IS_TAKEN not in str(failure):
                    raise
            else:
                return self
        raise ServerFailed(f"no free port in {TRIES} tries")

    def stop(self) -> None:
        """End it in an orderly way, as an operator would; a paused one continues first."""
        if self.running:
            self.resume()
            self._started.stop()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._started.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay up and nothing answers."""
        self._started.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._started.signal(signal.SIGCONT)

    def restart(self) -> None:
        """Stop it (if it still runs) and start it again."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.resume()
            self._started.end()

    @property
    def _started(self) -> ServerProcess:
        assert self._process is not None, "not started"
        return self._process

    def _start(self) -> None:
        self._process = self._launch()
        self._process.wait_until(self._answers, "answered")

    def _prepare(self) -> None:  # noqa: B027 -- most need nothing
        """Whatever must be there before it is started."""

    def _launch(self) -> ServerProcess:
        """Start it on `self.port`."""
        return ServerProcess(self._command(), log=self.folder / f"{type(self).__name__}.log")

    def _command(self) -> list[str | Path]:
        """What starts it, for those that do not override `_launch`."""
        raise NotImplementedError

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it serves, and it is this one and not somebody else's on that port."""


class ServerGroup(ABC):
    """Several servers that start and end together."""

    _stack: ExitStack

    def start(self) -> Self:
        """Start all of them, and wait until they work together."""
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def stop(self) -> None:
        """End all of them."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def _start(self, stack: ExitStack) -> None:
        """Enter each server into the stack."""
