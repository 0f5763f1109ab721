"""The parts of `counts`: contexts, hashed tables, and weights that mix them bit by bit."""
