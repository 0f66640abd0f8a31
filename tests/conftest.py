"""Several test files run at once, each in a process with one thread: threads of PyTorch in two processes slow both down."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
