"""A FastAPI application over a store, and somebody else who uses the store."""

import threading

from fastapi import FastAPI
from fastapi.testclient import TestClient

import dibs.sync
from dibs import connect
from dibs.contrib.fastapi import lifespan, problems


class Site:
    """An application over a store, its client, and somebody else who uses the store."""

    def __init__(self, url: str) -> None:
        self.other = dibs.sync.connect(url)
        self.app = FastAPI(lifespan=lifespan(url), exception_handlers=problems())
        self.started, self.go_on = threading.Event(), threading.Event()
        self.ended: list[str] = []

    @property
    def client(self) -> TestClient:
        return TestClient(self.app, raise_server_exceptions=False)

    def held(self) -> list[str]:
        return [status.name.decode() for status in self.other.list()]

    async def held_now(self) -> list[str]:
        return [status.name.decode() async for status in connect(self.other.url).list()]

    def lose(self) -> None:
        """As soon as the handler runs, its lease is taken away."""

        def work() -> None:
            assert self.started.wait(20)
            for status in self.other.list():
                self.other.revoke(status, reason="a test", now=True)

        threading.Thread(target=work).start()
