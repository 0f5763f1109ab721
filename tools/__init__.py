"""What the project's own commands need, and its users do not."""
