"""Any number of categories and classes: the first have an input each, the others share them, also when resumed."""

import numpy as np
import pytest

from norewind import Forecaster
from norewind.streams.stream import StreamError
from norewind.streams.table.formats import ReadOptions
from norewind.streams.table.input_names import input_names
from norewind.streams.table.python_rows import PythonRows
from norewind.streams.table.row_stream import RowStream

NAMES = [f"m{number}" for number in range(18)]
ROWS = [{"mode": NAMES[row % 18], "y": float(row)} for row in range(90)]


@pytest.mark.parametrize("cut", [5, 16, 17, 40])
def test_the_seventeenth_class_is_still_other_after_an_interruption(cut):
    options = {"read_options": ReadOptions("jsonl", classes=True), "inputs": ["mode", "y"], "targets": ["mode"]}
    whole, after = taken_in_parts(ROWS, cut, options)
    groups = whole.xs[:, -16:]
    np.testing.assert_array_equal(groups.max(axis=1) == 1, [row["mode"] in NAMES[:16] for row in ROWS])
    assert after.classes == NAMES[:16]
    assert after.class_name(16) == "(another)"
    np.testing.assert_array_equal(whole.values[:, 0], [min(NAMES.index(row["mode"]), 16) for row in ROWS])


def taken_in_parts(rows, cut, options):
    """The samples of all rows, which are those of a stream that is interrupted, and that stream at its end."""
    whole = RowStream(PythonRows(rows), **options).take(len(rows))
    before = RowStream(PythonRows(rows), **options)
    before.take(cut)
    after = RowStream(PythonRows(rows[cut:]), **options, position=before.position())
    rest = after.take(len(rows))
    for name, part in rest._asdict().items():
        if name != "lines" and part is not None:
            np.testing.assert_array_equal(part, getattr(whole, name)[cut:], err_msg=name)
    return whole, after


@pytest.mark.parametrize("cut", [5, 17, 150, 2_500])
@pytest.mark.parametrize(("early", "size"), [(10, 16), (90, 64)])
def test_thousands_of_categories_can_be_told_apart(cut, early, size):
    """Only the number of categories among the first hundred rows decides how many inputs there are."""
    numbers = [*(row % early for row in range(100)), *range(2_900)]
    rows = [{"mode": f"m{number}", "y": 0.0} for number in numbers]
    whole, after = taken_in_parts(rows, cut, {"inputs": ["mode"], "targets": ["y"]})
    assert whole.xs.shape == (3_000, size)
    np.testing.assert_allclose(np.square(whole.xs).sum(axis=1), 1, rtol=1e-6)
    own = (np.abs(whole.xs) == 1).any(axis=1)
    assert len({row["mode"] for row, is_own in zip(rows, own, strict=True) if is_own}) == size
    different = len(np.unique(whole.xs, axis=0))
    assert different > (450 if size == 16 else 2_000)  # of 4 · 120 or 4 · 2,016 pairs of places and signs
    assert len(after.position()["categories"]["mode"]) == size
    names = input_names(after.layout, after.position())
    assert len(names) == size
    assert names[0] == "mode = m0 (and later values)"


def test_a_damaged_number_of_categories_is_noticed():
    stream = RowStream(PythonRows(ROWS), inputs=["mode"], targets=["y"])
    stream.take(90)
    position = stream.position()
    assert position["wide"] == ["mode"]
    many = {**position, "categories": {"mode": [f"m{number}" for number in range(17)]}}
    del many["wide"]
    with pytest.raises(StreamError, match="its categories"):
        RowStream(PythonRows(ROWS), inputs=["mode"], targets=["y"], position=many)


def test_what_belongs_to_many_categories_is_learned():
    random = np.random.default_rng(0)
    effects, which = random.normal(size=40), random.integers(40, size=1_500)
    rows = [{"who": f"n{number}", "y": effects[number] + 0.1 * random.normal()} for number in which.tolist()]
    model = Forecaster("y", 0, inputs="who", budget=6).fit(rows[:1_400])
    errors = [model.predict_one({"who": row["who"]}) - row["y"] for row in rows[1_400:]]
    assert np.square(errors).mean() < 0.2  # the variance of the effects is 1
