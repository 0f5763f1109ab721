"""Columns known in advance: they are read ahead of their targets, and nothing else is."""

import numpy as np
import pytest

from norewind.streams import ReadOptions, RowStream, Source, StreamError
from norewind.streams.table.python_rows import PythonRows

STEPS, ROWS, PLANNED = (1, 3, 6), 60, 9
OPTIONS = {
    "targets": ["load"],
    "steps": STEPS,
    "read_options": ReadOptions(calendar=True, known_future=("price", "promo")),
}


def rows_of(planned=PLANNED):
    """Rows with a load, a price and a promotion; the last ones have no load yet, nor have some in between."""
    random = np.random.default_rng(0)
    rows = []
    for place in range(ROWS + planned):
        load = None if place >= ROWS or 30 <= place < 38 else float(random.integers(100))
        rows.append({"load": load, "price": float(random.integers(20)), "promo": place % 5 == 0})
    return rows


def write(path, rows):
    """Write rows as CSV or JSON lines, with a blank line in between."""
    lines = [f"{'' if row['load'] is None else row['load']},{row['price']},{str(row['promo']).lower()}" for row in rows]
    path.write_text("\n".join(["load,price,promo", *lines[:20], "", *lines[20:]]) + "\n")


def taken(stream, *counts):
    parts = []
    for count in counts:
        part = stream.take(count)
        if part is None:
            break
        parts.append(part)
    return parts


@pytest.mark.parametrize("kind", ["csv", "python"])
def test_their_values_in_the_rows_to_forecast_follow_the_inputs(kind, tmp_path):
    rows, options = rows_of(), OPTIONS | {"standardise": False}
    write(tmp_path / "rows.csv", rows)
    source = Source(str(tmp_path / "rows.csv")) if kind == "csv" else PythonRows(rows)
    with RowStream(source, **options) as stream:
        samples = np.concatenate([part.xs for part in taken(stream, *[25] * 4)])
        assert stream.targets == ["load"]
        # The rows at the end without targets are only a plan.
        assert len(samples) == ROWS
        assert stream.take(5) is None
        blocks = samples[:, 3:].reshape(ROWS, 1 + len(STEPS), 2)
        for place, ahead in enumerate((0, *STEPS)):
            expected = [[row["price"], row["promo"]] for row in rows[ahead : ahead + ROWS]]
            np.testing.assert_array_equal(blocks[:, place], expected)


def test_they_are_scaled_like_the_inputs():
    rows = rows_of()
    with RowStream(PythonRows(rows), **OPTIONS) as stream:
        xs = stream.take(ROWS).xs
    np.testing.assert_array_equal(xs[:, 3:5], xs[:, 1:3])


@pytest.mark.parametrize("inputs", [None, ["load"], ["promo", "load"]], ids=["all", "not named", "one named"])
def test_samples_do_not_depend_on_chunks_or_on_a_resumed_stream(inputs, tmp_path):
    """Columns that are known in advance are inputs, named or not."""
    write(tmp_path / "rows.csv", rows_of())
    source = lambda: Source(str(tmp_path / "rows.csv"))  # noqa: E731
    options = {**OPTIONS, "inputs": inputs}
    with RowStream(source(), **options) as stream:
        whole = stream.take(1000)
    with RowStream(source(), **options) as stream:
        parts = taken(stream, 1, 28, 3, 1, 4)
        position = stream.position()
    with RowStream(source(), **options, position=position) as stream:
        parts += taken(stream, *[7] * 10)
    np.testing.assert_array_equal(np.concatenate([part.xs for part in parts]), whole.xs)


def test_a_plan_becomes_rows_when_the_file_has_their_targets(tmp_path):
    rows = rows_of()
    write(tmp_path / "rows.csv", rows)
    with RowStream(Source(str(tmp_path / "rows.csv")), **OPTIONS) as stream:
        first = stream.take(1000)
        position = stream.position()
    for row in rows[ROWS : ROWS + 2]:
        row["load"] = 5.0
    write(tmp_path / "rows.csv", rows)
    with RowStream(Source(str(tmp_path / "rows.csv")), **OPTIONS) as whole:
        expected = whole.take(1000).xs
    with RowStream(Source(str(tmp_path / "rows.csv")), **OPTIONS, position=position) as stream:
        later = stream.take(1000)
    np.testing.assert_array_equal(np.concatenate([first.xs, later.xs]), expected)


def test_single_rows_use_the_plan_that_is_left():
    rows = rows_of()
    whole = rows_of()
    for row in whole[ROWS : ROWS + 3]:
        row["load"] = 5.0
    with RowStream(PythonRows(whole), **OPTIONS) as stream:
        expected = stream.take(1000).xs[ROWS:]
    with RowStream(PythonRows(rows), **OPTIONS) as stream:
        stream.take(1000)
        for place in range(3):
            row = whole[ROWS + place]
            np.testing.assert_array_equal(stream.peek([row]).xs, stream.take_row(row).xs)
        assert len(stream.position()["plan"]) == 3
        assert expected.shape == (3, 3 + 8)


def test_a_target_or_text_cannot_be_known_in_advance():
    rows = [{**row, "word": "a"} for row in rows_of()]
    for name in ("load", "word"):
        options = OPTIONS | {"read_options": ReadOptions(known_future=(name,))}
        with pytest.raises(StreamError, match=f"known_future: '{name}'"):
            RowStream(PythonRows(rows), **options)
