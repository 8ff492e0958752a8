"""What the routes about where directories live share: the desk, and what it refuses."""

from collections.abc import Generator
from contextlib import contextmanager

from dibs.server.api.problems import ApiProblem
from dibs.server.call import Call
from dibs.server.placing.choice import Unsatisfiable
from dibs.server.placing.desk import Desk, TooMany, Unknown
from dibs.server.records.port import Conflict


def desk_of(call: Call) -> Desk:
    """Who knows where directories live."""
    desk = call.service.placing
    assert desk is not None, "the server has started"
    return desk


@contextmanager
def refusals(unknown: ApiProblem | None = None) -> Generator[None]:
    """Raise what the desk refuses in here as `ApiProblem`; `unknown` is that of what it does not know."""
    try:
        yield
    except Unknown as error:
        raise unknown or ApiProblem("malformed", str(error)) from None
    except Unsatisfiable as error:
        raise ApiProblem("unsatisfiable", str(error)) from None
    except TooMany as error:
        raise ApiProblem("limit", str(error)) from None
    except Conflict:
        raise ApiProblem("conflict", "another request changed it at the same time") from None
