"""From rows to the answer, on runs whose answer is known."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from synthetic_run import ANCHOR_NS, KNEE, STEP_S, TOKENS, WINDOW_S, level_start_ns, user_rows, write_run

from analysis.dataset import load_run
from analysis.errors import InputError
from analysis.report import analyze
from analysis.summary import summarize
from workers.records import journal_header, journal_line, to_table

CONCURRENCY = [1, 2, 4, 8, 16, 32]


def edit_manifest(run: Path, level: int, **changes: Any) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["levels"][level] |= changes
    (run / "manifest.json").write_text(json.dumps(manifest))


def level_folder(run: Path, level: int) -> Path:
    return run / "requests" / f"level={level}" / "worker=w0"


def test_the_hinge_is_found_and_every_measure_is_right(tmp_path: Path) -> None:
    write_run(tmp_path, CONCURRENCY)
    summary = summarize(load_run(tmp_path))
    assert summary.knee.verdict == "found"
    assert summary.knee.knee is not None
    assert summary.knee.knee.low <= KNEE <= summary.knee.knee.high
    assert summary.knee.knee.x == pytest.approx(KNEE, rel=0.05)
    assert summary.knee.capacity == pytest.approx(KNEE / STEP_S, rel=0.03)
    for level in summary.levels:
        slowdown = max(1, level.concurrency / KNEE)
        metrics = level.metrics
        assert level.verdict.kind == "valid", level.verdict.reason
        assert metrics.tokens_per_s == pytest.approx(min(level.concurrency, KNEE) / STEP_S, rel=0.01)
        assert metrics.ttft_ms.p50 == pytest.approx(STEP_S * slowdown * 1e3, rel=0.001)
        assert metrics.tpot_ms.mean == pytest.approx(STEP_S * slowdown * 1e3, rel=0.001)
        assert metrics.e2e_ms.p50 == pytest.approx(TOKENS * STEP_S * slowdown * 1e3, rel=0.001)
        assert metrics.icl_ms.p50 == pytest.approx(STEP_S * slowdown * 1e3, rel=0.001)
        assert metrics.mean_in_flight == pytest.approx(level.concurrency, rel=0.001)
        assert metrics.outcomes == {"ok": metrics.requests}
        assert metrics.requests == pytest.approx(WINDOW_S * level.concurrency / (TOKENS * STEP_S * slowdown), rel=0.1)
        assert metrics.prompt_tokens == {"short": 30}
    assert "8" in summary.sentence


def test_percentiles_need_samples(tmp_path: Path) -> None:
    write_run(tmp_path, CONCURRENCY)
    summary = summarize(load_run(tmp_path))
    few, many = summary.levels[0].metrics.ttft_ms, summary.levels[4].metrics.ttft_ms
    assert (few.count, few.p95 is not None, few.p99) == (25, True, None)
    assert many.count > 100
    assert many.p99 is not None


def test_levels_that_do_not_count_say_why(tmp_path: Path) -> None:
    write_run(tmp_path, [*CONCURRENCY, 64, 64])
    edit_manifest(tmp_path, 1, status="degraded", note="w1 was lost")
    edit_manifest(tmp_path, 2, concurrency=5)
    edit_manifest(tmp_path, 3, status="interrupted")
    edit_manifest(tmp_path, 7, status="running", window_start_unix_ns=None, window_end_unix_ns=None)
    rows = user_rows(6, 0, 1)
    for row in rows[::5]:
        row.outcome = "server"
    pq.write_table(to_table(rows, ANCHOR_NS), level_folder(tmp_path, 6) / "part-00000.parquet")
    summary = summarize(load_run(tmp_path))
    kinds = [level.verdict.kind for level in summary.levels]
    assert kinds == ["valid", "client_limited", "client_limited", "too_few", "valid", "valid", "failing", "too_few"]
    assert "5 were asked" in summary.levels[2].verdict.reason
    assert "5 of 8 levels were refused" in summary.sentence
    assert summary.knee.verdict == "invalid"


def test_a_journal_left_behind_counts_and_a_stale_one_does_not(tmp_path: Path) -> None:
    write_run(tmp_path, CONCURRENCY)
    whole = summarize(load_run(tmp_path))
    rows = user_rows(2, 0, 4)
    journal = b"".join([journal_header(ANCHOR_NS), *map(journal_line, rows), journal_line(rows[0])[:50]])
    (level_folder(tmp_path, 2) / "part-00000.jsonl").write_bytes(journal)
    assert summarize(load_run(tmp_path)) == whole
    (level_folder(tmp_path, 2) / "part-00001.jsonl").write_bytes(journal)
    more = load_run(tmp_path).levels[2].num_rows - whole.levels[2].rows
    assert more == len(rows)


def test_an_empty_level_and_a_run_of_one_level(tmp_path: Path) -> None:
    write_run(tmp_path, [4])
    edit_manifest(tmp_path, 0, concurrency=4)
    assert analyze(tmp_path).knee.verdict == "invalid"
    (level_folder(tmp_path, 0) / "part-00000.parquet").unlink()
    summary = analyze(tmp_path)
    assert summary.levels[0].verdict.kind == "too_few"
    assert (tmp_path / "report.html").exists()


def test_another_process_s_anchor_is_its_own(tmp_path: Path) -> None:
    """Two machines, whose monotonic clocks differ: the rows land on one wall clock."""
    write_run(tmp_path, CONCURRENCY)
    before = summarize(load_run(tmp_path))
    shifted = user_rows(0, 0, 1)
    for row in shifted:
        for name in ("intended_ns", "sent_ns", "first_token_ns", "last_token_ns", "end_ns"):
            setattr(row, name, getattr(row, name) - 77)
        row.chunk_ns = [t - 77 for t in row.chunk_ns or []]
    pq.write_table(to_table(shifted, ANCHOR_NS + 77), level_folder(tmp_path, 0) / "part-00000.parquet")
    assert summarize(load_run(tmp_path)) == before
    assert level_start_ns(0) > 0


def test_the_report_is_whole_offline_and_escaped(tmp_path: Path) -> None:
    write_run(tmp_path, CONCURRENCY)
    summary = analyze(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert summary.sentence in page
    assert page.count("<svg") == 3
    assert page.count("<tr class=") == len(CONCURRENCY)
    assert "&lt;made up&gt;" in page
    assert "<made up>" not in page
    assert "<script" not in page
    assert not re.search(r"""(src|href)=["'](?!#)|url\((?!#)|@import""", page), "the page loads something"
    assert (tmp_path / "knee.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["verdict"] == "found"
    assert written["knee"]["low"] <= KNEE <= written["knee"]["high"]
    assert len(written["levels"]) == len(CONCURRENCY)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == [
        "knee.png", "manifest.json", "report.html", "summary.json",
    ]  # fmt: skip


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no manifest\.json"):
        load_run(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="not a readable manifest"):
        load_run(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 2}')
    with pytest.raises(InputError, match="format 1"):
        load_run(tmp_path)
