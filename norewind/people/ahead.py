"""What comes next: the forecasts that a live run has made of the next rows, and those it makes from them."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import numpy as np

from norewind.people.feed import Feed
from norewind.people.live import Live, Row
from norewind.streams import Samples, StreamError


def forecasts(live: Live, others: Iterable[Row] = ()) -> Iterator[Row]:
    """Row after row of what comes next: first what was forecast already, then from its own forecasts.

    `others` are columns of these rows that are known already.
    """
    horizon = live.settings.horizon
    if live.opened is None or "columns" not in (position := live.opened.stream.position()):
        raise StreamError("there is nothing to forecast from yet: fit the model, or let it learn some rows.")
    targets = live.opened.stream.targets
    feed, run = Feed(), live.run_now()
    # What is not forecast stays as it was.
    stream = live.opened_at(position, feed, replace(live.settings, missing="last")).stream
    scales = position["waiting"][-horizon:, :, :2]
    # The first rows of a stream were not forecast.
    scales = np.concatenate([np.full((horizon - len(scales), *scales.shape[1:]), np.nan), scales])
    made = live.learner.to_come(live.single.unpacked(run))
    known = deque(_in_units(live, output, scale) for output, scale in zip(made, scales, strict=True))
    for other in chain(others, repeat({})):
        row = known.popleft()
        yield row
        feed.put(live.written({**other, **{name: row["forecast"][name] for name in targets}}))
        samples = stream.take(1)
        assert samples is not None
        run, (output, _) = live.single.answer(run, samples.xs[0])
        known.append(_in_units(live, output, samples.ahead[0]))


def _in_units(live: Live, output: Any, scale: np.ndarray) -> Row:
    nothing = np.full((1, len(scale)), np.nan, np.float32)
    samples = Samples(nothing, nothing, np.full((1, *scale.shape), np.nan), nothing, scale[None])
    return live.entry(samples, (output, output))
