"""The parts of `Counts`: contexts, hashed rows of counters, and mixers, as plain loops."""
