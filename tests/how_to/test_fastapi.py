"""Two servers of docs/how-to/fastapi.md."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.cli.processes import LONG
from tests.how_to.programs import Programs, line_with
from tests.pages import blocks
from tests.servers.waiting import wait_until

PAGE = "how-to/fastapi.md"


def pay(server: str) -> tuple[int, Any, Any]:
    """Pay order 42: the status, the headers, and the body."""
    try:
        answer = urlopen(Request(f"{server}/orders/42/pay", method="POST"), timeout=LONG)
    except HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.headers, json.load(answer)


def test_of_two_requests_one_changes_the_order(programs: Programs) -> None:
    programs.edit("shop.py", "sleep(3)", "sleep(1)")
    servers = []
    for process in [programs.start("uvicorn --port 0 shop:app") for _ in range(2)]:
        found = re.search(r"http://\S+", line_with("running on", process, "stderr"))
        assert found
        servers.append(found[0])

    with ThreadPoolExecutor(2) as clients:

        def race() -> list[tuple[int, Any, Any]]:
            answers = sorted(clients.map(pay, servers), key=lambda answer: answer[0])
            return answers if [status for status, *_ in answers] == [200, 409] else []

        (_, _, paid), (_, headers, problem) = wait_until(race, "they overlap", within=LONG)
    assert paid["order"] == 42
    [shown] = [line for line in "".join(blocks(PAGE, "console")).splitlines() if "urn:" in line]
    assert problem == json.loads(shown)
    assert headers["content-type"] == "application/problem+json"
    assert headers["retry-after"] == "5"
