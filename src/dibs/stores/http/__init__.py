"""The https store: leases in a Dibs service, for clients that cannot reach its store."""
