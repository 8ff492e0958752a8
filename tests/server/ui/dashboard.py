"""What tests of the dashboard use: a visit by a browser, held locks."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect

from tests.server.world import LONG, World

OPTIONS = (
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
)

expect.set_options(timeout=LONG * 1000)


_NUMBERS = count(1)


class Held:
    """Acquires and queues for names, by the commands that programs send."""

    def __init__(self, world: World) -> None:
        self.client = world.client()

    def take(self, key: str | bytes, owner: str, *, ttl: float = 600, **fields: Any) -> str:
        """A lease, or, with `queue=True`, a place in line that lasts; its id."""
        lease = f"lease-of-a-test-{next(_NUMBERS):0>8}"
        self._send("acquire", key, lease, owner=owner, ttl=ttl, waiter_ttl=600, **fields)
        return lease

    def wait(self, key: str | bytes, owner: str, **fields: Any) -> None:
        self.take(key, owner, queue=True, **fields)

    def release(self, key: str | bytes, lease: str) -> None:
        self._send("release", key, lease)

    def _send(self, op: str, key: str | bytes, lease: str, **fields: Any) -> None:
        (reply,) = self.client.batch({"op": op, "key": key, "id": lease, **fields})
        assert reply["is"] in ("granted", "queued", "released")


@dataclass
class Visit:
    """A profile of its own, with one page open in a browser."""

    world: World
    page: Page
    complaints: list[str] = field(default_factory=list)
    """Exceptions, and errors on the console, also what the policy forbids."""

    @classmethod
    @contextmanager
    def of(cls, browser: Browser, world: World, **options: Any) -> Generator[Self]:
        with browser.new_context(base_url=world.url, **options) as context:
            context.set_default_timeout(LONG * 1000)
            visit = cls(world, context.new_page())
            visit.page.on("console", visit._note_error)
            visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
            yield visit
        assert visit.complaints == []

    def sign_in(self, key: str = "") -> None:
        """Begin a session without the form, and open the dashboard."""
        answer = self.page.context.request.post(
            "/ui/session",
            headers={"origin": self.world.url},
            data={"key": key or self.world.admin_key},
        )
        assert answer.status == 200, answer.text()
        self.page.goto("/")

    def _note_error(self, message: ConsoleMessage) -> None:
        # an answer of 401 or 404 is no error of the page's: tests look at what it makes of it
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)


def go(page: Page, where: str) -> None:
    page.evaluate("where => { location.hash = where }", f"#/{where}")


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def figure(page: Page, name: str) -> Locator:
    return page.locator(f"[data-figure={name}]")


def expect_live(page: Page) -> None:
    expect(page.get_by_text("live", exact=True)).to_be_visible()
