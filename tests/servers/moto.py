"""A server of the S3 API of its own for a test: moto, which keeps nothing and is fast."""

import sys
from pathlib import Path

import httpx2

from tests.servers.ports import HOST
from tests.servers.server import Server

_SERVE = """
import sys
from threading import Lock

from moto.server import create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple

moto, lock = create_backend_app("s3"), Lock()

class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *args):
        pass

def one_at_a_time(environ, start_response):  # or an object that is just overwritten answers 500
    with lock:
        return list(moto(environ, start_response))

run_simple(sys.argv[1], int(sys.argv[2]), one_at_a_time, threaded=True, request_handler=Handler)
"""


class MotoServer(Server):
    """A moto with one bucket on a free loopback port; it takes any credentials."""

    PORT_IS_TAKEN = "already in use"
    bucket = "tests"

    def _command(self) -> list[str | Path]:
        return [sys.executable, "-c", _SERVE, HOST, str(self.port)]

    def _answers(self) -> bool:
        try:
            return httpx2.put(f"{self.url}/{self.bucket}", verify=False).is_success
        except httpx2.TransportError:
            return False
