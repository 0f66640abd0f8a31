import pytest

from lib_lora.formats.file_name import fits_every_system


@pytest.mark.parametrize("name", ["a.safetensors", "日本 é.safetensors", "console.txt", "x" * 200])
def test_names_that_fit(name):
    assert fits_every_system(name)


@pytest.mark.parametrize(
    "name",
    ["con.safetensors", "LPT1", "a:b", "a?", ".hidden", "a.", "a ", "日" * 67, "a\nb", 'a"b'],
)
def test_names_that_some_system_cannot_hold(name):
    """Windows' reserved characters and devices; 67 letters of 3 bytes are 201."""
    assert not fits_every_system(name)
