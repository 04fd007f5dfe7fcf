"""The run directory: made once, its manifest always whole, nothing left of a run that never began."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.errors import UsageError
from cluster.run_dir import RunDir, check_new
from cluster.settings import SweepSettings

TARGET = {"name": "engine", "base_url": "http://127.0.0.1:1/v1", "model": "demo"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "r", TARGET, {"concurrency": "1"}, seed=3)


def _manifest(run: RunDir) -> dict[str, object]:
    return json.loads((run.path / "manifest.json").read_text())


def test_manifest_says_what_runs(run: RunDir) -> None:
    manifest = _manifest(run)
    assert (manifest["format"], manifest["run_id"], manifest["kind"], manifest["load"]) == (1, "r", "sweep", "closed")
    assert (manifest["target"], manifest["seed"], manifest["levels"]) == (TARGET, 3, [])
    assert manifest["versions"].keys() == {"python", "tokenswarm", "locust", "ray", "torch", "transformers"}
    assert all(manifest["versions"].values())


def test_levels_are_kept_up_to_date(run: RunDir) -> None:
    run.begin_level(0, 4)
    assert _manifest(run)["levels"] == [
        {
            "level": 0, "concurrency": 4, "rate_rps": None, "status": "running", "started_unix_ns": None,
            "window_start_unix_ns": None,
            "window_end_unix_ns": None, "note": None,
        }
    ]  # fmt: skip
    run.update_level(0, status="complete", window_end_unix_ns=7)
    (level,) = _manifest(run)["levels"]
    assert (level["status"], level["window_end_unix_ns"]) == ("complete", 7)


def test_existing_directory_is_refused(run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exists; choose another"):
        check_new(tmp_path, "r")


@pytest.mark.parametrize("run_id", ["", "../up", "a/b", ".hidden", "a b"])
def test_run_id_is_a_plain_name(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(UsageError, match="no plain name"):
        check_new(tmp_path, run_id)


def test_run_without_a_level_leaves_nothing(run: RunDir) -> None:
    run.discard_unless_measured()
    assert not run.path.exists()


def test_run_with_a_level_stays(run: RunDir) -> None:
    run.begin_level(0, 1)
    run.discard_unless_measured()
    assert run.path.exists()


def test_placed_file_is_whole_or_absent(run: RunDir) -> None:
    run.place("requests/level=0/worker=w0/part-00000.parquet", b"rows")
    folder = run.path / "requests" / "level=0" / "worker=w0"
    assert [(file.name, file.read_bytes()) for file in folder.iterdir()] == [("part-00000.parquet", b"rows")]


def test_settings_carry_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAOTOKEN_API_KEY", "sk-secret")
    settings = SweepSettings(concurrency="1,2", target="http://127.0.0.1:9")
    assert "sk-secret" not in json.dumps(settings.as_json())
    assert "replicas" not in settings.as_json()  # they are no part of a run against a URL
