"""Wrong input: one line on stderr, exit 2, nothing started and nothing left."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from command import run

MIX = ("sweep", "--concurrency", "1,2", "--mix")
CASES = {
    "unknown model folder": (("serve", "--model", "./no/such"), "./no/such"),
    "model folder without a model": (("serve", "--model", "."), "config.json"),
    "concurrency of 0": (("sweep", "--concurrency", "0"), "'0'"),
    "concurrency that is none": (("sweep", "--concurrency", "1,abc"), "'abc'"),
    "mix that does not sum up": ((*MIX, "short=0.6,medium=0.3"), "0.9"),
    "mix with an unknown class": ((*MIX, "short=0.5,huge=0.5"), "'huge'"),
    "run directory that exists": (("sweep", "--concurrency", "1", "--run-id", "there"), "'runs/there' exists"),
    "demo into a run directory that exists": (("demo", "--run-id", "there"), "'runs/there' exists"),
    "run id with a path in it": (("sweep", "--concurrency", "1", "--run-id", "../x"), "'../x'"),
    "no duration": (("sweep", "--concurrency", "1", "--duration", "0"), "duration is 0"),
    "no workers": (("sweep", "--concurrency", "1", "--workers", "0"), "workers is 0"),
    "no threads": (("serve", "--threads", "0"), "threads is 0"),
    "no replicas": (("serve", "--replicas", "0"), "replicas is 0"),
    "negative seqs": (("serve", "--max-num-seqs", "-1"), "max_num_seqs is -1"),
    "unknown dtype": (("serve", "--dtype", "int3"), "'int3'"),
    "unknown language": (("sweep", "--concurrency", "1", "--language", "fr"), "'fr'"),
    "target that is no URL": (("sweep", "--concurrency", "1", "--target", "ftp://x"), "'ftp://x'"),
    "curve without the column": (("knee", "curve.csv", "--x", "users", "--y", "nope"), "nope"),
    "curve that is missing": (("knee", "none.csv", "--x", "users", "--y", "rate"), "none.csv"),
    "run that is missing": (("analyze", "runs/none"), "runs/none"),
    "option without its value": (("sweep", "--concurrency"), "--concurrency"),
    "unknown command": (("swep",), "swep"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad-input")
    (folder / "runs" / "there").mkdir(parents=True)
    (folder / "curve.csv").write_text("users,rate\n1,10\n2,20\n")
    return folder


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_line_and_exit_2(folder: Path, case: str) -> None:
    arguments, fragment = CASES[case]
    before = sorted(folder.rglob("*"))
    done = run(folder, *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert fragment in line
    assert sorted(folder.rglob("*")) == before


def test_port_in_use_is_refused(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(folder, "serve", "--port", str(port))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"127.0.0.1:{port}" in line


def test_help_comes_at_once(folder: Path) -> None:
    begun = time.monotonic()
    done = run(folder, "--help")
    assert time.monotonic() - begun < 2  # about 0.3 s on an idle core
    assert done.returncode == 0
    for command in ("demo", "serve", "sweep", "analyze", "knee"):
        assert f"  {command} " in done.stdout
