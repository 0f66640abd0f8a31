"""Several test files run at once, each in a process with one thread: threads of PyTorch in two processes slow both down."""

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def host(tmp_path):
    """Return the stand-in of the WebUI."""
    from webui_host import Host

    host = Host(tmp_path)
    yield host
    host.forget()
