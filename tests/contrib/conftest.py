"""What the tests of FastAPI share."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.contrib.site import Site


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site(f"memory://{uuid4()}")
    yield site
    assert site.held() == [], "nothing is left behind"
    site.other.close()
