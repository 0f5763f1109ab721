"""Mixing of forecasts of numbers, by a plain loop."""

import numpy as np

from norewind.learners import expert_weights
from norewind.learners.number_mixture import FIRST_WEIGHT


def plain_mixture(forecasts, targets, step, row_weight=expert_weights.ROW_WEIGHT):
    """Mix the experts' forecasts of one step and target, (rows, experts); NaN means that there is none."""
    spread, record, count = np.ones(forecasts.shape[1]), np.zeros(forecasts.shape[1]), np.zeros(forecasts.shape[1])
    record[1] = -2 * FIRST_WEIGHT
    mixed = []
    for t, target in enumerate(targets):
        before = record
        if t >= step:
            due = forecasts[t - step]
            if not np.isnan(target):
                count = count + 1
                errors = np.minimum((due - target) ** 2, expert_weights.MAX_ERROR**2 * spread)
                spread = spread + np.maximum(1 / (count + 1), 0.01) * (errors - spread)
                record = 0.99 * record + row_weight * (errors / spread + np.log(spread))
            absent = np.isnan(due)
            spread, record = np.where(absent, spread[0], spread), np.where(absent, record[0], record)
            count = np.where(absent, 0, count)
        # Forecasts of the row itself come first.
        used = record if step else before
        weights = np.where(np.isnan(forecasts[t]), 0, np.exp(-(used - np.nanmin(used)) / 2))
        mixed.append(weights @ np.nan_to_num(forecasts[t]) / weights.sum())
    return mixed
