"""The benchmarks that `make bench` runs: see `python -m benchmarks --help`."""
