import pytest

from lib_lora.demo.outputs import whole


def test_the_file_appears_at_the_end_under_its_name(tmp_path):
    file = tmp_path / "picture.png"
    with whole(file) as part:
        part.write_text("new")
        assert part.suffix == ".png"
        assert not file.exists()
    assert [f.name for f in tmp_path.iterdir()] == ["picture.png"]
    assert file.read_text() == "new"


def test_what_is_stopped_leaves_the_old_file_and_no_other(tmp_path):
    file = tmp_path / "report.json"
    file.write_text("old")

    def stopped():
        with whole(file) as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert [f.name for f in tmp_path.iterdir()] == ["report.json"]
    assert file.read_text() == "old"
