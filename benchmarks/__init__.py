"""What Leasehold costs, beside its peers: `python -m benchmarks`."""
