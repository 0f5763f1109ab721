"""Many runs at once: workers, sweeps and their records, the shards of a fleet, the partitions of a topic."""
