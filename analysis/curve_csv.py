"""A knee from any CSV file that has a column of loads and one of throughputs."""

from __future__ import annotations

import csv
from pathlib import Path

from analysis.errors import InputError
from analysis.knee import KneeResult, Load, fit_curve


def knee_from_csv(path: Path, x: str, y: str, load: Load) -> KneeResult:
    """Fits column ``y`` against column ``x``; an empty cell counts as not measured.

    Raises:
        InputError: the file cannot be read, lacks a column, or holds a cell that is no number.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            for name in (x, y):
                if name not in columns:
                    raise InputError(f"{path}: no column {name!r}; it has {', '.join(columns) or 'none'}")
            rows = [[_number(path, reader.line_num, name, row[name]) for name in (x, y)] for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not readable as CSV: {error}") from error
    return fit_curve([row[0] for row in rows], [row[1] for row in rows], load)


def _number(path: Path, line: int, column: str, cell: str | None) -> float:
    if cell is None or not cell.strip():
        return float("nan")
    try:
        return float(cell)
    except ValueError:
        raise InputError(f"{path}, line {line}: {column} is {cell!r}, not a number") from None
