"""Pages of another port and of another host in a browser that is signed in: they can do nothing."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dibs.core.names import fingerprint
from dibs.server.api.routing import Operation
from tests.server.inside import meters_of, ticket_of
from tests.server.ui.dashboard import Visit
from tests.server.world import World, b64

pytestmark = pytest.mark.once

HELD = b64("payroll")

PAGE = """<!doctype html><title>Win a prize</title><script>
const at = TARGET, lock = `${at}/v1/locks/HELD`, force = `id=LEASE&force=true&reason=none`;
const batch = JSON.stringify({ commands: [] });
const tried = [];
function attempt(what) { tried.push(what.then(() => "answered", () => "blocked")); }
function ask(url, method, more) { attempt(fetch(url, { method, credentials: "include", ...more })); }
for (const mode of ["cors", "no-cors"]) {
  ask(`${lock}?ttl=600`, "POST", { mode });
  ask(`${at}/v1/locks/OTHER`, "POST", { mode });
  ask(`${at}/v1/batch`, "POST", { mode, body: batch });
  ask(`${at}/v1/token`, "POST", { mode });
  ask(`${at}/v1/keys`, "POST", { mode, body: '{"name": "mine", "scopes": ["admin"]}' });
  ask(`${at}/ui/session`, "POST", { mode, body: '{"key": "MINE"}' });
  ask(`${at}/v1/locks`, "GET", { mode });
  ask(`${at}/ui/session`, "GET", { mode });
}
ask(`${lock}?${force}`, "DELETE", {});
ask(`${at}/ui/session`, "DELETE", {});
ask(`${lock}?ttl=600`, "POST", { headers: { "dibs-csrf": "x" } });
ask(`${lock}?ttl=600`, "POST", { headers: { "content-type": "application/json" }, body: "{}" });
attempt(new Promise((yes, no) => {
  const source = new EventSource(`${at}/v1/events`, { withCredentials: true });
  source.onmessage = source.onopen = yes; source.onerror = no;
}));
attempt(new Promise((yes, no) => {
  const image = new Image(); image.onload = yes; image.onerror = no; image.src = `${at}/ui/favicon.svg`;
}));
attempt(new Promise((yes, no) => {
  const script = document.createElement("script"); script.onload = yes; script.onerror = no;
  script.src = `${at}/v1/locks`; document.head.append(script);
}));
function post(url, encoding) {
  attempt(new Promise((yes) => {
    const frame = document.createElement("iframe"); frame.name = `sink${document.forms.length}`;
    const form = document.createElement("form"); form.target = frame.name; form.action = url;
    form.method = "POST"; form.enctype = encoding;
    document.body.append(frame, form);
    frame.onload = yes; form.submit();
  }));
}
addEventListener("load", async () => {
  for (const encoding of ["text/plain", "application/x-www-form-urlencoded"]) {
    post(`${lock}?ttl=600`, encoding);
    post(`${at}/v1/batch`, encoding);
    post(`${at}/ui/session`, encoding);
  }
  const frame = document.createElement("iframe"); frame.src = `${at}/`;
  document.body.append(frame);
  attempt(new Promise((yes) => { frame.onload = yes; }));
  window.outcome = await Promise.all(tried);
});
</script><body>"""


class Elsewhere(BaseHTTPRequestHandler):
    """A server of somebody else's, with one page."""

    page = ""

    def do_GET(self) -> None:
        body = self.page.encode()
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[int]:
    """Its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("host", "refused"),
    [
        ("127.0.0.1", 403),  # the same site by a browser's reckoning, so the cookie comes with it
        ("localhost", 401),
    ],
)
def test_pages_of_other_sites_change_nothing(
    world: World, visit: Visit, elsewhere: int, host: str, refused: int
) -> None:
    admin = world.client()
    held = admin.post(f"/v1/locks/{HELD}", params={"client-id": "the payroll", "ttl": 600}).json()
    page = PAGE.replace("TARGET", f'"{world.url}"').replace("HELD", HELD)
    page = page.replace("LEASE", held["id"]).replace("OTHER", b64(f"other-{host}"))
    Elsewhere.page = page.replace("MINE", world.key("read", name="a stranger"))
    visit.sign_in(open_page="")  # its own questions would be seen too
    mine = visit.page.context.request.get("/ui/session").json()
    seen: list[tuple[str, int]] = []

    def meter(route: Operation | None, status: int, _: float) -> None:
        seen.append((f"{route.method} {route.path}" if route else "", status))

    meters_of(world).append(meter)
    other = visit.page.context.new_page()
    other.goto(f"http://{host}:{elsewhere}/")
    other.wait_for_function("window.outcome")
    outcome = other.evaluate("window.outcome")
    meters_of(world).remove(meter)
    assert len(outcome) > 25
    found = {status for what, status in seen if what.startswith(("POST /v1", "GET /v1"))}
    assert found == {refused}, seen
    assert {status for what, status in seen if what == "POST /ui/session"} <= {403, 415}
    assert ("POST /v1/locks/{name}", refused) in seen
    assert ("POST /v1/batch", refused) in seen
    assert ("GET /v1/locks", refused) in seen
    assert not [what for what, _ in seen if what.startswith("DELETE")], (
        "these must be asked for first"
    )
    assert admin.get(f"/v1/locks/{HELD}").json()["id"] == fingerprint(held["id"]), (
        "it is held as before"
    )
    assert admin.get(f"/v1/locks/{b64(f'other-{host}')}").status_code == 404
    names = [each["name"] for each in admin.get("/v1/keys").json()["keys"]]
    assert "mine" not in names
    still = visit.page.context.request.get("/ui/session").json()
    assert still == mine, "whoever was signed in still is"
    frames = [frame.url for frame in other.frames if frame.url.rstrip("/") == world.url]
    assert frames == [], "the dashboard is in nobody's frame"
    assert admin.delete(f"/v1/locks/{HELD}", params={"id": held["id"]}).status_code == 200
    visit.complaints.clear()  # that other page's


def test_the_key_is_kept_nowhere(world: World, visit: Visit) -> None:
    key = world.key("admin", name="me")
    page = visit.page
    page.goto("/")
    page.fill("#key", key)
    page.click("button[type=submit]")
    page.wait_for_selector("nav a")
    kept = page.evaluate(
        """async () => JSON.stringify([
            document.documentElement.outerHTML, { ...localStorage }, { ...sessionStorage },
            [...document.querySelectorAll('input')].map((input) => input.value),
            document.cookie, location.href, history.state, window.name,
            (await indexedDB.databases()).map(({ name }) => name), await caches.keys(),
            performance.getEntries().map(({ name }) => name),
        ])"""
    )
    state = str(page.context.storage_state())
    secret = key.split("_", 2)[2]
    assert secret not in kept
    assert secret not in state
    assert page.evaluate("document.cookie") == "", "no script reads the session"
    [cookie] = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")


def test_a_ticket_signs_in_once_and_leaves_the_address(world: World, visit: Visit) -> None:
    ticket = world.do(lambda: ticket_of(world))
    visit.page.goto(f"/#ticket={ticket}")
    visit.page.wait_for_selector("nav a")
    assert ticket not in visit.page.url
    visit.page.context.clear_cookies()
    visit.page.goto("about:blank")
    visit.page.goto(f"/#ticket={ticket}")
    visit.page.wait_for_selector("#key")
    assert visit.page.context.cookies() == []
