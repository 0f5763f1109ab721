"""Categories beyond the sixteen that are distinguished, before and after an interruption."""

import numpy as np
import pytest

from norewind.streams.table.formats import ReadOptions
from norewind.streams.table.python_rows import PythonRows
from norewind.streams.table.row_stream import RowStream

NAMES = [f"m{number}" for number in range(18)]
ROWS = [{"mode": NAMES[row % 18], "y": float(row)} for row in range(90)]


@pytest.mark.parametrize("cut", [5, 16, 17, 40])
@pytest.mark.parametrize("classes", [False, True])
def test_the_seventeenth_category_is_still_other_after_an_interruption(cut, classes):
    options = {"read_options": ReadOptions("jsonl", classes=classes), "inputs": ["mode", "y"]}
    options["targets"] = ["mode"] if classes else ["y"]
    whole = RowStream(PythonRows(ROWS), **options).take(len(ROWS))
    before = RowStream(PythonRows(ROWS), **options)
    before.take(cut)
    after = RowStream(PythonRows(ROWS[cut:]), **options, position=before.position())
    rest = after.take(len(ROWS))
    for name, part in rest._asdict().items():
        if name != "lines" and part is not None:
            np.testing.assert_array_equal(part, getattr(whole, name)[cut:], err_msg=name)
    groups = rest.xs[:, 1:17] if not classes else rest.xs[:, -16:]
    kept = [row["mode"] in NAMES[:16] for row in ROWS[cut:]]
    np.testing.assert_array_equal(groups.sum(axis=1), kept)
    if classes:
        assert after.classes == NAMES[:16]
        assert after.class_name(16) == "(another)"
        np.testing.assert_array_equal(rest.values[:, 0], [min(NAMES.index(row["mode"]), 16) for row in ROWS[cut:]])
