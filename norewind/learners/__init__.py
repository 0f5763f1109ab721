"""Learners of symbols that are no networks: hashed counts mixed bit by bit, and mixtures with a guarantee."""
