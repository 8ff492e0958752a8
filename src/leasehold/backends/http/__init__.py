"""Leases through Leasehold's own service: `https://server`, for whoever may not reach the store itself."""
