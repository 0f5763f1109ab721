"""Learners other than `online`: forecasts ahead, least squares, counts, and mixtures of learners."""
