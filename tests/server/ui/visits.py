"""A visit to the dashboard by a browser, and all that it had to complain of."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page

from tests.server.world import LONG, World

OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-first-run",
)


@dataclass
class Visit:
    """A profile of its own, with one page open."""

    world: World
    page: Page
    complaints: list[str] = field(default_factory=list)
    """What the console said of errors, also of what the policy forbids; exceptions; dialogs."""

    @classmethod
    @contextmanager
    def of(cls, browser: Browser, world: World, **options: Any) -> Generator["Visit"]:
        with browser.new_context(base_url=world.url, **options) as context:
            context.set_default_timeout(LONG * 1000)
            visit = cls(world, context.new_page())
            visit.listen_to(visit.page)
            context.on("page", visit.listen_to)
            yield visit

    def listen_to(self, page: Page) -> None:
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        page.on("dialog", self._asked)

    def sign_in(self, key: str = "", *, open_page: str = "/") -> dict[str, Any]:
        """Have a session without the form, and then that page; what the server told of it."""
        answer = self.page.context.request.post(
            "/ui/session",
            headers={"origin": self.world.url},
            data={"key": key or self.world.admin_key},
        )
        assert answer.status == 200, answer.text()
        if open_page:
            self.page.goto(open_page)
        told: dict[str, Any] = answer.json()
        return told

    def _said(self, message: ConsoleMessage) -> None:
        # an answer of 401 or 404 is no error of the page's: tests look at what it makes of it
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(f"console: {message.text}")

    def _asked(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()
