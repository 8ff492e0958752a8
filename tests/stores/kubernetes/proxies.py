"""A small proxy for HTTP, by CONNECT or for whole URLs."""

import socket
import threading
from contextlib import suppress
from http.client import parse_headers
from socketserver import StreamRequestHandler, ThreadingTCPServer
from urllib.parse import urlsplit


class HttpProxy(ThreadingTCPServer):
    """A proxy on a free loopback port, in a `with` block. It resolves each name to this machine."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.requests: list[str] = []
        """Method and URL of each request, also of each CONNECT."""
        self.answers: list[bytes] = []
        """What is answered instead of the next requests."""
        self.always: dict[str, bytes] = {}
        """What is answered to each request that contains a text. Nothing (`b""`): it hangs."""
        self.logins: list[str] = []
        self.sockets: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.05,)).start()

    @property
    def methods(self) -> list[str]:
        return [each.partition(" ")[0] for each in self.requests]

    def __exit__(self, *about: object) -> None:
        self.shutdown()
        self.server_close()
        for each in self.sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def canned(self, request: str) -> bytes | None:
        """The answer that a test wants; None: the server's own."""
        if self.answers:
            return self.answers.pop(0)
        return next((answer for text, answer in self.always.items() if text in request), None)


class _Client(StreamRequestHandler):
    server: HttpProxy
    to_server: socket.socket | None = None

    def handle(self) -> None:
        self.server.sockets.append(self.connection)
        with suppress(OSError, ValueError):
            while line := self.rfile.readline():
                headers = parse_headers(self.rfile)
                body = self.rfile.read(int(headers.get("content-length", 0)))
                method, target, _ = line.decode().split(" ")
                self.server.requests.append(f"{method} {target}")
                self.server.logins += headers.get_all("proxy-authorization", [])
                if method == "CONNECT":
                    way = self._dial(int(target.rpartition(":")[2]))
                    self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    return _pump(self.connection, way)
                answer = self.server.canned(f"{method} {target}")
                if answer is not None:
                    self.wfile.write(answer)
                    continue
                url = urlsplit(target)
                head = f"{method} {target.partition(url.netloc)[2]} HTTP/1.1\r\n"
                head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                self._dial(url.port or 80).sendall(head.encode() + b"\r\n" + body)

    def _dial(self, port: int) -> socket.socket:
        if self.to_server is None:
            self.to_server = socket.create_connection(("127.0.0.1", port))
            self.server.sockets.append(self.to_server)
            pumps = (self.to_server, self.connection)
            threading.Thread(target=_pump, args=pumps, daemon=True).start()
        return self.to_server


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
