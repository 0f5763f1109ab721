"""Rows from Python and names of columns that are unusual: read, or rejected with an explanation."""

import numpy as np
import pytest
from run_folders import assert_rejected
from run_folders import norewind as command

import norewind
from norewind.plotting.figures import classes_figure, curves_figure, rows_figure, save
from norewind.streams import StreamError
from norewind.streams.table.python_rows import as_row, iterate_rows


def test_long_doubles_are_numbers():
    value = np.longdouble(1.5)
    assert as_row({"x": value}) == {"x": 1.5}
    assert as_row(np.array([value, 2])) == {"1": 1.5, "2": 2.0}
    assert as_row({"x": np.array([value])}) == {"x": [1.5]}


def test_two_columns_of_one_name_are_rejected():
    pandas = pytest.importorskip("pandas")
    for names in (["a", "a"], [1, "1"]):
        frame = pandas.DataFrame([[1.0, 2.0]] * 3, columns=names)
        for make in (lambda: list(iterate_rows(frame)), lambda: as_row(frame.iloc[0])):  # noqa: B023
            with pytest.raises(StreamError, match="appears twice"):
                make()
    with pytest.raises(StreamError, match="the column '1' appears twice"):
        as_row({1: 2.0, "1": 3.0})


def test_names_that_cannot_be_drawn_as_they_are(tmp_path):
    """Half a character, and what Matplotlib would take for a formula."""
    name = "$\\frac$ \ud800"
    save(rows_figure(np.ones((5, 1, 3)), [name], 5), tmp_path / "rows.png")
    save(classes_figure(np.zeros((5, 3)), lambda _: name, 5), tmp_path / "classes.png")
    save(curves_figure([(name, [{"samples": 30, "loss": 1.0}])], "bits"), tmp_path / "curves.png")


def test_a_class_with_half_a_character_is_saved(tmp_path):
    rows = [{"x": number % 3, "c": ("a", "b", "\ud800")[number % 3]} for number in range(120)]
    model = norewind.Classifier("c", method="snap1", cell="rnn", hidden=2).fit(rows)
    model.save(tmp_path / "run")
    again = norewind.load(tmp_path / "run")
    assert again.predict_proba_one({"x": 2}) == model.predict_proba_one({"x": 2})
    assert "\ud800" in again.predict_proba_one({"x": 2})


def test_a_folder_cannot_be_decompressed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_rejected(capsys, command("decompress", "."), ".: Is a directory")
