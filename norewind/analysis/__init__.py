"""Tools to evaluate methods: `diagnose` measures their gradients, `compare` their training."""
