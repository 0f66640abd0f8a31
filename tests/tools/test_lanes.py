"""The lanes of tests: that what they name is there, and that a lane which cannot run fails. The lanes themselves run in CI."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.lanes import NEWEST, WEBUIS, LaneError, interpreter, stream, versions

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("lane", WEBUIS, ids=lambda lane: lane.name)
def test_what_a_lane_names_is_there(lane):
    assert (ROOT / "requirements" / lane.pins).is_file()
    assert all((ROOT / path).is_dir() for path in lane.tests)
    for test, reason in lane.without:
        path, name = test.partition("[")[0].split("::")
        assert f"def {name}(" in (ROOT / path).read_text("utf-8")
        assert path.startswith(lane.tests), "it would not run anyway"
        assert reason


def test_the_pins_are_those_of_the_webuis():
    assert versions("v1.10.1") == "torch 2.1.2, transformers 4.30.2, gradio 3.41.2"
    assert versions("forge") == "torch 2.3.1, transformers 4.46.1, gradio 4.40.0"
    assert "torch" in versions(NEWEST)


def test_an_interpreter_is_found_by_its_version():
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    said = subprocess.check_output([interpreter(version), "-V"], text=True)
    assert said.startswith(f"Python {version}.")
    with pytest.raises(LaneError, match=r"no Python 3\.99"):
        interpreter("3.99")


def test_a_lane_whose_interpreter_is_missing_fails_and_is_listed(tmp_path):
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "lanes.py", tmp_path / "tools")
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "tools" / "lanes.py"), "forge"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert re.search(
        r"^lane forge \(torch .*\), \d+ s: FAILED: There is no Python 3\.10", done.stdout, re.M
    )
    assert not (tmp_path / ".lanes" / "forge").exists()


def test_the_last_line_of_a_program_is_what_it_says(capfd):
    assert stream([sys.executable, "-c", "print('one'); print('two'); print()"], {}) == "two"
    assert "one" in capfd.readouterr().out
    with pytest.raises(LaneError, match="ended with 3: one"):
        stream([sys.executable, "-c", "print('one'); raise SystemExit(3)"], {})
