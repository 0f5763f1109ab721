"""Files and checkpoints that are complete or absent, whatever happens."""
