"""Several test files run at once, each in a process with one thread: threads of PyTorch in two processes slow both down."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
# The files that take longest begin first, so that no process is left with one at the end.
LONGEST = (
    *("demo/test_run.py", "jobs/test_faults.py", "demo/test_base.py", "train/test_training.py"),
    *("train/test_training_families.py", "train/test_against_peft.py", "hosts/test_diffusers.py"),
    *("ui/test_journey.py", "test_loom.py", "cli/test_train.py", "cli/test_demo.py"),
)


def pytest_collection_modifyitems(items):
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session")
def kennel():
    """Where workers begin at once: what they start with takes longer than a small training."""
    from tests.jobs.broken import Kennel

    found = Kennel()
    yield found
    found.close()


@pytest.fixture
def host(tmp_path):
    """Return the stand-in of the WebUI."""
    from webui_host import Host

    host = Host(tmp_path)
    yield host
    host.forget()
