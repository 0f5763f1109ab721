"""The parts of `counts`: contexts, hashed rows of counters, and mixers, as plain loops."""
