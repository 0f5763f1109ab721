"""Training runs: settings in a folder, one loop, and sweeps of many runs."""
