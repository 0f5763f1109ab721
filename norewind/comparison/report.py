"""The result of a comparison, as Markdown, CSV, JSON and a figure."""

import csv
import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

LAST = 10
"""Final levels are means over the last tenth of the curve."""


@dataclass(frozen=True)
class Result:
    """One method under one seed: its curve in bits per character, and what it costs."""

    method: str
    seed: int
    curve: list[float]
    microseconds: float | None
    carried_bytes: int | None
    problem: str | None

    @property
    def final(self) -> float | None:
        """The mean over the last tenth of the curve; None where the run did not end well."""
        return float(np.mean(self.curve[-max(1, len(self.curve) // LAST) :])) if self.problem is None else None

    def summary(self) -> str:
        """A line for the progress of a comparison."""
        if self.problem is not None:
            return f"{self.method}: {self.problem}"
        return f"{self.method}: {self.final:.4f} bits per character, {self.microseconds:.1f} µs each"


@dataclass(frozen=True)
class Comparison:
    """All results, and what they have in common. Printed, it is a Markdown table."""

    task: str
    floor: float
    naive: float
    cell: str
    units: int
    chunk: int
    optimizer: str
    results: list[Result]

    def __str__(self) -> str:
        """The table."""
        return self.table()

    def methods(self) -> dict[str, list[Result]]:
        """The results of each method, in order."""
        grouped: dict[str, list[Result]] = {}
        for result in self.results:
            grouped.setdefault(result.method, []).append(result)
        return grouped

    def rows(self) -> list[dict]:
        """One row per method: means over seeds, with the standard error where there are several."""
        rows = []
        for method, results in self.methods().items():
            finals = [result.final for result in results if result.final is not None]
            times = [result.microseconds for result in results if result.microseconds is not None]
            problems = [result.problem for result in results if result.problem is not None]
            rows.append(
                {
                    "method": method,
                    "bits_per_character": float(np.mean(finals)) if finals else None,
                    "standard_error": float(np.std(finals, ddof=1) / len(finals) ** 0.5) if len(finals) > 1 else None,
                    "cpu_microseconds_per_character": min(times) if times else None,
                    "carried_bytes": results[0].carried_bytes,
                    "runs": len(results),
                    "problem": "; ".join(dict.fromkeys(problems)) or None,
                }
            )
        return rows

    def table(self) -> str:
        """A Markdown table, best method first."""
        lines = [
            "| method | final bits per character | CPU µs per character | bytes carried | |",
            "|---|---|---|---|---|",
        ]
        rows = sorted(self.rows(), key=lambda row: (row["bits_per_character"] is None, row["bits_per_character"] or 0))
        for row in rows:
            final, error = row["bits_per_character"], row["standard_error"]
            level = "–" if final is None else f"{final:.4f}" + (f" ± {error:.4f}" if error is not None else "")
            spent = row["cpu_microseconds_per_character"]
            cost = "–" if spent is None else f"{spent:.1f}"
            carried = "–" if row["carried_bytes"] is None else f"{row['carried_bytes']:,}"
            lines.append(f"| {row['method']} | {level} | {cost} | {carried} | {row['problem'] or ''} |")
        characters = self.chunk * max((len(result.curve) for result in self.results), default=0)
        note = (
            f"{self.task}, {self.cell} of {self.units}, {self.optimizer}, {characters:,} characters, "
            f"{rows[0]['runs']} seed(s); floor {self.floor:.4f}, without memory {self.naive:.4f}."
        )
        return "\n".join([*lines, "", note])

    def csv(self) -> str:
        """The rows of the table as CSV."""
        out = io.StringIO()
        rows = self.rows()
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()

    def as_json(self) -> dict:
        """Everything as plain data."""
        return asdict(self) | {"rows": self.rows()}

    def save(self, folder: Path | str) -> None:
        """Write comparison.md, .csv, .json and .png into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "comparison.md").write_text(self.table() + "\n")
        (folder / "comparison.csv").write_text(self.csv())
        (folder / "comparison.json").write_text(json.dumps(self.as_json(), indent=1) + "\n")
        self.figure(folder / "comparison.png")

    def figure(self, path: Path | str) -> None:
        """The curves, beside final level against time and against memory."""
        from norewind.comparison.figure import draw

        draw(self, Path(path))
