"""What Dibs costs, beside its peers: `python -m benchmarks`."""
