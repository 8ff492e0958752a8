"""What is told when everybody is refused, as no key is known any more."""

import pytest

from dibs.server.keys import KeyRing
from dibs.server.keys_document import KIND
from dibs.server.principal import Scope
from dibs.server.records import records_for


async def test_keys_that_a_newer_release_has_written_are_not_called_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    records = records_for("memory://newer")
    await records.open()
    ring = KeyRing(records)
    await ring.load()
    await ring.create("a", {Scope.ADMIN}, ())
    (record,) = await records.all(KIND)
    newer = record.value.replace(b'"format":1', b'"format":2')
    assert newer != record.value
    await records.put(KIND, record.name, newer, record.version)
    await ring.refresh()
    assert "none of the keys in the records can be read" in caplog.text
    assert "run that one" in caplog.text
    assert "gone" not in caplog.text
    await ring.close()
    await records.close()
