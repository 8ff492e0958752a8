"""Two stores: one that the settings name, and one that the program connects.

`python examples/stores.py`

Prints: the report runs, with token …
Prints: sent once, to a@example.com
Prints: in a test, the report is free
"""

import asyncio
import os
import tempfile
from pathlib import Path

from dibs import Lock, TaskLock, connect, override

SETTINGS = """
[stores.reports]
url = "sqlite:///{folder}/reports.db"

[tasklock."mail:{{address}}"]
min_hold = "5m"
max_hold = "10m"
"""

monthly = Lock("monthly", client="reports")
"""Declared with the module, before there is any store."""


async def main(folder: Path) -> None:
    settings = folder / "dibs.toml"
    settings.write_text(SETTINGS.format(folder=folder))
    os.environ["DIBS_CONFIG"] = str(settings)  # as a deployment would

    async with monthly as lease:  # its store is connected by itself, as the settings name it
        print("the report runs, with token", lease.token)

    async with connect(f"sqlite:///{folder}/mails.db") as mails:

        @TaskLock.wraps("mail:{address}", on_busy="skip", client=mails)
        async def send(address: str) -> None:
            print("sent once, to", address)

        await send("a@example.com")
        await send("a@example.com")  # skipped: it has min_hold of the settings

    async with monthly:
        with override(connect("memory://"), name="reports"):  # as a test would
            print("in a test, the report is", "held" if await monthly.locked() else "free")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
