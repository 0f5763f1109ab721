"""What `make bench` measures: `python -m benchmarks --help`."""
