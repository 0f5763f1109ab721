"""Scores: how predictions are judged and written, lines of metrics, and the summary of a run."""
