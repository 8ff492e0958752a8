"""A small proxy for HTTP, by CONNECT or for whole URLs."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class HttpProxy:
    """A proxy on a free loopback port. It resolves each name to this machine."""

    def __init__(self) -> None:
        self.methods: list[str] = []
        """Of the requests that came as whole URLs, and `CONNECT`."""
        self.answers: list[bytes] = []
        """What is answered instead of the next requests."""
        self.always: dict[str, bytes] = {}
        """What is answered to each request whose line contains a text. Nothing (`b""`): it hangs."""
        self.logins: list[str] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                self._sockets.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        with suppress(OSError, ValueError):
            while True:
                head, rest = self._read_head(client)
                method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
                self.methods.append(method)
                for text in head.decode().split("\r\n"):
                    if text.lower().startswith("proxy-authorization:"):
                        self.logins.append(text)
                if method == "CONNECT":
                    server = self._dial(int(target.rpartition(":")[2]))
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n" + rest)
                    threading.Thread(target=_pump, args=(server, client), daemon=True).start()
                    return _pump(client, server)
                body = rest + self._read_body(client, head, len(rest))
                if self.answers:
                    client.sendall(self.answers.pop(0))
                    continue
                always = [
                    each for text, each in self.always.items() if text in f"{method} {target}"
                ]
                if always:
                    client.sendall(always[0])
                    continue
                url = urlsplit(target)
                if server is None:
                    server = self._dial(url.port or 80)
                    threading.Thread(target=_pump, args=(server, client), daemon=True).start()
                path = target.partition(url.netloc)[2]
                first, others = head.split(b"\r\n", 1)
                line = first.replace(target.encode(), path.encode())
                server.sendall(line + b"\r\n" + others + b"\r\n\r\n" + body)

    def _dial(self, port: int) -> socket.socket:
        server = socket.create_connection(("127.0.0.1", port))
        self._sockets.append(server)
        return server

    def _read_head(self, client: socket.socket) -> tuple[bytes, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = client.recv(65536)
            if not piece:
                raise OSError("it has hung up")
            data += piece
        head, _, rest = data.partition(b"\r\n\r\n")
        return head, rest

    def _read_body(self, client: socket.socket, head: bytes, have: int) -> bytes:
        size = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                size = int(line.partition(b":")[2])
        body = b""
        while have + len(body) < size:
            body += client.recv(65536)
        return body


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
