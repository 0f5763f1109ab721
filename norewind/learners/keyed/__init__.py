"""Engines that run learners for many keys: they take rows with the slots of their keys, and the arrays of all slots."""
