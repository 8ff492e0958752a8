"""Authentication and permissions of the service's callers."""
