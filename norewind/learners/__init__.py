"""Learners beside `online`: forecasts ahead."""
