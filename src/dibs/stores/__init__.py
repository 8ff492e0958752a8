"""The stores: where leases are kept."""
