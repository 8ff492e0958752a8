"""What workers have written so far, read while they write."""

import json
from collections import Counter
from pathlib import Path

from tests.temporal.torture.marks import lease_name


class Watch:
    """Who holds at this moment, and how many cycles are done."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: Counter[Path] = Counter()
        self._open: set[str] = set()
        self._used: set[str] = set()

    @property
    def cycles(self) -> int:
        """Leases that were granted and used to the end."""
        return len(self._used)

    @property
    def holders(self) -> list[str]:
        """Workflow IDs of those whose work has begun and not ended. The dead stay until `forget`."""
        return sorted({lease_name(lease).workflow for lease in self._open})

    @property
    def programs(self) -> set[int]:
        """Process ids of plain programs that hold something, and of those that died with it."""
        names = [lease_name(lease) for lease in self._open]
        return {int(name.workflow.partition("-")[0]) for name in names if not name.run}

    def forget(self, workflow: str) -> None:
        """It has ended, however."""
        self._open = {each for each in self._open if lease_name(each).workflow != workflow}

    def look(self) -> None:
        """Read on."""
        for path in self._folder.glob("history-*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read[path])
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read[path] += len(line)
                    self._take(json.loads(line))

    def _take(self, event: dict[str, str]) -> None:
        match event["what"]:
            case "granted" | "renewed":
                self._open.add(event["lease"])
            case "releasing":
                self._open.discard(event["lease"])
                self._used.add(event["lease"])
