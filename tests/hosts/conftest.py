"""The stand-in of the WebUI with the extension in it."""

import pytest
from webui_host import Host


@pytest.fixture
def make_host(tmp_path):
    """Return a function that makes the host with models of a kind."""
    made = []

    def make(kind="sd1"):
        made.append(Host(tmp_path, kind))
        made[-1].load_extension()
        return made[-1]

    yield make
    for host in made:
        host.unload_extension()
        host.forget()


@pytest.fixture
def host(make_host):
    return make_host()
