"""Missing packages, reported with the command that installs them."""

from collections.abc import Generator
from contextlib import contextmanager

from dibs.errors import NotConfigured


@contextmanager
def needing(extra: str) -> Generator[None]:
    """Imports in this block need one of our extras. Raises `NotConfigured` where a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "dibs":
            raise
        raise NotConfigured(
            f"the package {package} is missing: pip install 'dibs[{extra}]'"
        ) from error
