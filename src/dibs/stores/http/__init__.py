"""Leases through Dibs's own service: `https://server`, for whoever may not reach the store itself."""
