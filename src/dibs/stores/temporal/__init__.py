"""temporal://host:7233/namespace keeps leases in workflows: one broker for each key, running the ledger."""
