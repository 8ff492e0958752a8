"""How many files, and so how many connections, a process may have open."""

import logging

log = logging.getLogger("dibs.server")


def allow_files(wanted: int) -> None:
    """Ask the system for so many, or for as many as it gives."""
    try:
        import resource
    except ImportError:
        return  # it knows no such bound
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError) as error:
        log.warning("no more than %d files can be open: %s", soft, error)
