"""The scripts of the pages, by node: their arithmetic, and that they keep to rules which a browser does not check."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "javascript").glob("*.js"))
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="NODE IS NOT HERE: the pages' arithmetic is not tested")
def test_the_arithmetic_of_the_pages():
    done = subprocess.run(
        [NODE, "--test", Path(__file__).with_name("pages.test.cjs")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^# pass [1-9]", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_no_script_reads_text_as_markup_or_code(script):
    text = script.read_text("utf-8")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_script_keeps_its_names_to_itself(script):
    """All extensions of a WebUI share one global scope."""
    text = script.read_text("utf-8")
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).strip()
    assert code.startswith("(() => {")
    assert code.endswith("})();")
