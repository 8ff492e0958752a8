"""A browser's profile, as the server sees it, for tests on the wire."""

import ssl

import httpx2

from tests.server.world import World

TRUST = ssl.create_default_context()
"""Each client would read the certificates anew."""


class Profile:
    """A browser's, as the server sees it: its cookies, and the dashboard's page in it."""

    def __init__(self, world: World, **headers: str) -> None:
        self.client = httpx2.Client(base_url=world.url, headers=headers, verify=TRUST)
        self.origin = {"origin": world.url}
        self.page = dict(self.origin)

    def sign_in(self, key: str = "", **body: str) -> httpx2.Response:
        answer = self.client.post("/ui/session", json=body or {"key": key}, headers=self.origin)
        if answer.status_code == 200:
            self.page["dibs-csrf"] = answer.json()["csrf"]
        return answer

    @property
    def sealed(self) -> str:
        return self.client.cookies["dibs_session"]

    def with_cookie(self, sealed: str, name: str = "dibs_session") -> int:
        """The status of what is asked with that cookie."""
        headers = {"cookie": f"{name}={sealed}"}
        self.client.cookies.clear()
        return self.client.get("/v1/about", headers=headers).status_code


def type_of(answer: httpx2.Response) -> str:
    """Which problem it is."""
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["type"]).removeprefix("/problems/")
