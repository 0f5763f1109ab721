"""Engines that run learners for many keys: they take rows with their keys, and the arrays of all keys."""
