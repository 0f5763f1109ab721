"""Programs that run a learner for many keys, on rows with the slots of their keys and the arrays of all slots."""
