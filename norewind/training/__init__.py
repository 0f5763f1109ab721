"""Training on a stream that may never end: metrics, checkpoints, interruptions, divergence."""
