"""Leases where frameworks expect them. The module of each framework is imported by its own name."""


def needs(framework: str, package: str) -> ImportError:
    """The error for a missing framework."""
    return ImportError(
        f"dibs.contrib.{package} needs {framework}: pip install 'dibs[{package}]'",
        name=package,
    )
