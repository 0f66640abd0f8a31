"""The progress of a run as a terminal and a file see it."""

import io

import pytest

from lib_lora.cli.progress import BAR_WIDTH, ProgressLine, progress_text


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_text_holds_what_is_known():
    half = "=" * (BAR_WIDTH // 2) + " " * (BAR_WIDTH // 2)
    assert (
        progress_text("training", 5, 10, 0.12345, 65.4)
        == f"training   [{half}] 5/10  loss 0.1235  1:05 left"
    )
    assert progress_text("saving", 0, 0, None, None).strip() == "saving"


def test_a_file_gets_whole_lines_and_few_of_them():
    out = io.StringIO()
    line = ProgressLine(out)
    line.show("training", 0, 100)
    for step in range(1, 101):
        line.show("training", step, 100, 0.5, 100.0 - step)
    line.tell("A note.")
    line.close()
    text = out.getvalue()
    assert "\r" not in text
    assert [part.split()[-1] for part in text.splitlines()] == ["0/100", "left", "note."]
    assert "100/100" in text


def test_a_terminal_gets_one_line_that_is_rewritten():
    out = Terminal()
    line = ProgressLine(out)
    line.show("training", 1, 2, 0.5, 10.0)
    line.show("training", 2, 2, 0.25, 0.0)
    assert out.getvalue().count("\n") == 0
    assert out.getvalue().split("\r")[-1].rstrip().endswith("0:00 left")
    line.tell("A note.")
    assert out.getvalue().endswith("A note.\n")
    line.show("saving")
    line.close()
    assert out.getvalue().endswith("saving    \n")


@pytest.mark.parametrize("columns", [20, 80])
def test_a_narrow_terminal_is_not_overrun(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Terminal()
    ProgressLine(out).show("training", 123456, 1_000_000, 0.5, 1e5)
    assert len(out.getvalue().lstrip("\r")) < columns
