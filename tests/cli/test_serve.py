"""What `serve` refuses before it loads anything."""

import pytest

from lib_lora.cli.main import main


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_is_none_is_refused(capsys, port):
    assert main(["serve", "--port", str(port)]) == 2
    assert capsys.readouterr().err == f"--port accepts 0 to 65535; found {port}.\n"
