"""Alarms of drift: the errors of forecasts have grown, or the weight of a mixture has moved to other members.

**Errors.** They are averaged over blocks of rows, and every mean is ranked among the earlier ones. If the errors are
exchangeable, as those of a good forecast of stationary noise are, every rank is equally likely, whatever the
distribution. A bet on large ranks then gains nothing on average, and
R ← (1 + R) · gain grows by 1 per block on average (the Shiryaev-Roberts statistic, an e-detector of Shin, Ramdas and
Rinaldo, 2022). An alarm is raised when R reaches the number of blocks in 100,000 rows, times the number of statistics.
So on such a stream **there is on average at most one false alarm in 100,000 rows**, and the chance of one in n rows is
at most n / 100,000. tests/scoring/test_drift.py measures this on noise of several kinds.

If all later means are larger than the n ≥ 40 earlier ones, there is an alarm within 20 blocks: 320 rows for forecasts
of the next row. Smaller changes take longer. Only larger errors count: those of a model that learns become smaller.

Errors that come in waves, such as those of a day, are not exchangeable. A block therefore has a whole number of known
periods. It has at least 16 errors, all of which are from forecasts that do not overlap. Earlier means are counted in a
histogram of their logarithms. Every column has two, which restart in turn, so that they hold the latest 500 to 1,000
means, and memory is constant, about 5 kB per column. After an alarm, both restart.

**Members.** An alarm is raised at a line of metrics if more than half of the weight has moved to other members since
the line before, in means over at least 100 rows each. This is a rule without a guarantee.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from norewind.engines.kernels import kernel
from norewind.scoring.tally import Number
from norewind.streams.position import Count

# The least mean number of rows between false alarms.
FALSE_ALARM_ROWS = 100_000
# The least number of errors in a block, and the longest period that a block covers, in rows.
BLOCK_ERRORS, LONGEST_BLOCK = 16, 2016
# A histogram restarts when both hold at least this many means.
RESTART_MEANS = 500
# The bins of a histogram, how many there are for each factor of e, and the logarithm at which the first one begins.
BINS, BINS_PER_E, LOWEST_LOG = 280, 20, -10.0
# A larger error counts as this large, in standard deviations of the column.
MAX_ERROR = 10.0
# The powers of the bets. Smaller powers bet more on the largest ranks.
POWERS = (0.3, 0.6, 0.9)
# The gain since the likely beginning of a change is multiplied by this, so that it soon vanishes without a change.
ALLOWANCE = 0.7
# The numbers of a detector before its histogram: the number of means, R of each power, the gain since the likely
# beginning of a change, and its row. The numbers of a column before its detectors: the sum of errors and their number.
HISTOGRAM_START, DETECTORS = 3 + len(POWERS), 2
# The members have changed if this share of the weight has moved between means over at least this many rows.
MIN_ROWS, MOVED_WEIGHT = 100, 0.5

# An alarm: the row that raised it, its time as text, the column, and the row at which the change probably began.
Alarm = tuple[Count, str, str, Count]


def init_drift(columns: int) -> np.ndarray:
    """Return the state of the detectors before the first row.

    Args:
        columns: the number of columns.
    """
    return np.zeros((columns, 2 + DETECTORS * (HISTOGRAM_START + BINS)))


def block_rows(step: int, period: int | None = None) -> int:
    """Return the number of rows in a block.

    Args:
        step: how many rows ahead the forecasts are. Their errors are independent only at this distance.
        period: a known period of the errors, in rows.

    >>> block_rows(1), block_rows(24), block_rows(1, 24), block_rows(1, 7), block_rows(1, 100_000)
    (16, 384, 24, 21, 16)
    """
    rows = BLOCK_ERRORS * max(1, step)
    return -(-rows // period) * period if period and period <= LONGEST_BLOCK else rows


def find_drift(state: np.ndarray, errors: np.ndarray, first: int, step: int, block: int) -> list[tuple[int, int, int]]:
    """Add the errors of consecutive rows, and return the alarms.

    Args:
        state: the state of the detectors, changed in place.
        errors: the sizes of errors in standard deviations, or losses (rows, columns); NaN means unknown.
        first: the number of the first row.
        step: how many rows ahead the forecasts were.
        block: the number of rows in a block.

    Returns:
        For each alarm, the index of its row, its column, and the row at which the change probably began.
    """
    limit = max(1.0, FALSE_ALARM_ROWS / block) * DETECTORS * errors.shape[1]
    found = np.zeros((len(errors) // block + 2, errors.shape[1]), np.int64)
    at = np.zeros_like(found)
    errors = np.minimum(np.asarray(errors, np.float64, order="C"), MAX_ERROR)
    _watch(state, errors, first, max(1, step), block, limit, np.array(POWERS), at, found)
    return [(int(at[i, c]) - 1, int(c), int(found[i, c])) for i, c in zip(*np.nonzero(at), strict=True)]


def drift_entries(state: Any) -> dict[str, Any]:
    """Return the time of the latest row and the alarms since the last line of metrics, as its entries.

    Args:
        state: the state of a score; its alarms are removed.
    """
    alarms, state.alarms = state.alarms, []
    entries: dict[str, Any] = {"time": state.time} if state.time else {}
    if alarms:
        entries["drift"] = [
            {"sample": row, "of": "errors", "column": column, "since": since} | ({"time": time} if time else {})
            for row, time, column, since in alarms
        ]
    return entries


@kernel
def _watch(state, errors, first, step, block, limit, powers, at, found):
    """Write, by block and column, 1 + the index of a row with an alarm, and the row at which the change began."""
    for row in range(len(errors)):
        number = first + row
        ends = (number + 1) % block == 0
        for column in range(errors.shape[1]):
            sums = state[column]
            if number % step == 0 and not np.isnan(errors[row, column]):
                sums[0] += errors[row, column]
                sums[1] += 1
            if not ends:
                continue
            mean, count = sums[0] / max(sums[1], 1.0), sums[1]
            sums[:2] = 0.0
            if 2 * count < BLOCK_ERRORS:
                continue
            detectors = sums[2:].reshape((DETECTORS, HISTOGRAM_START + BINS))
            since = -1
            for i in range(DETECTORS):
                if bet(detectors[i], mean, number + 1 - block, powers) >= limit:
                    since = np.int64(detectors[i, 2 + len(powers)])
            if since >= 0:
                detectors[:] = 0.0
                place = row // block
                place += at[place, column] > 0
                at[place, column], found[place, column] = row + 1, since
            elif min(detectors[0, 0], detectors[1, 0]) >= RESTART_MEANS:
                # The histogram of the older one restarts. Its bets keep their gains.
                oldest = 0 if detectors[0, 0] >= detectors[1, 0] else 1
                detectors[oldest, 0] = 0.0
                detectors[oldest, HISTOGRAM_START:] = 0.0


@kernel
def bet(detector, mean, start, powers):
    """Bet that a mean ranks high among earlier ones, count it, and return the mean statistic of all bets.

    A bet of power k on a rank that is uniform between a and b, as shares of all from the largest, gains
    (bᵏ − aᵏ)/(b − a): the mean of k p^(k − 1) there, which is 1 on average over all ranks.

    Args:
        detector: the numbers of a detector, changed in place.
        mean: the mean error of a block.
        start: the number of its first row.
        powers: the power of each bet.
    """
    bets, counts = len(powers), detector[HISTOGRAM_START:]
    place = min(max(int((np.log(max(mean, 1e-30)) - LOWEST_LOG) * BINS_PER_E), 0), BINS - 1)
    above = 0.0
    for larger in range(place + 1, BINS):
        above += counts[larger]
    low, high = above / (detector[0] + 1), (above + counts[place] + 1) / (detector[0] + 1)
    total = 0.0
    for k in range(bets):
        gain = (high ** powers[k] - low ** powers[k]) / (high - low)
        detector[1 + k] = min((1 + detector[1 + k]) * gain, 1e200)
        total += detector[1 + k] / bets
        if k == bets // 2:
            if detector[1 + bets] <= 1:
                detector[1 + bets], detector[2 + bets] = 1.0, start
            detector[1 + bets] = min(detector[1 + bets] * gain * ALLOWANCE, 1e200)
    detector[0] += 1
    counts[place] += 1
    return total


class MemberWeights(msgspec.Struct, forbid_unknown_fields=True):
    """The weights of the members of a mixture since the latest line of metrics, and the number of alarms.

    Attributes:
        sums: the sum of each member's weights since the latest line.
        latest: their means between the two latest lines.
        rows: the number of rows of these means.
        alarms: the number of alarms since the start, of any kind.
    """

    sums: list[Number] = msgspec.field(default_factory=list)
    latest: list[Number] = msgspec.field(default_factory=list)
    rows: Number = 0.0
    alarms: Count = 0

    def add(self, weights: np.ndarray) -> None:
        """Add the weights of rows, in order, so that rounding does not depend on how rows are divided.

        Args:
            weights: the weights (rows, members), which add up to 1 in every row.
        """
        before = np.array(self.sums) if len(self.sums) == weights.shape[1] else np.zeros(weights.shape[1])
        self.sums = np.cumsum(np.concatenate([before[None], weights]), axis=0)[-1].tolist()

    def add_line(self, line: dict[str, Any], names: Sequence[str]) -> None:
        """Add to a line of metrics the weights since the line before and, if they changed, an alarm.

        Args:
            line: the line, changed in place.
            names: the names of the members.
        """
        if (rows := round(sum(self.sums))) > 0:
            weights = np.array(self.sums) / rows
            moved = abs(weights - self.latest).sum() / 2 if len(self.latest) == len(weights) else 0.0
            if min(rows, self.rows) >= MIN_ROWS and moved > MOVED_WEIGHT:
                alarm: dict[str, Any] = {"sample": line["samples"], "of": "members"}
                line.setdefault("drift", []).append(alarm | ({"time": line["time"]} if "time" in line else {}))
            shown = {name: round(weight, 3) for name, weight in zip(names, weights.tolist(), strict=True)}
            line["weights"] = {name: weight for name, weight in shown.items() if weight >= 0.01}
            self.sums, self.latest, self.rows = [], weights.tolist(), float(rows)
        self.alarms += len(line.get("drift", []))
        if self.alarms or "weights" in line:
            line["alarms"] = self.alarms
