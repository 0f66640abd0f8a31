"""What a worker says of an error that ends its work."""

import errno
import os

import pytest
import torch

from lib_lora.jobs.worker import _sentence


def whole_memory_and_more():
    torch.empty(1 << 50)


def raising(error):
    def act():
        raise error

    return act


@pytest.mark.parametrize(
    "act",
    [
        whole_memory_and_more,
        raising(MemoryError()),
        raising(RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9.")),
        raising(RuntimeError("CUDA error: out of memory")),
        raising(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")),
        raising(OSError("[WinError 1455] The paging file is too small for this operation")),
        raising(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))),
    ],
)
def test_a_full_memory_is_told_with_what_helps(act):
    """PyTorch has a class of error for a full device alone; a full main memory is a RuntimeError like any other."""
    with pytest.raises((MemoryError, RuntimeError, OSError)) as caught:
        act()
    assert _sentence(caught.value).startswith("The memory ran out: lower the batch or the size")


def test_other_errors_keep_their_words():
    assert "(RuntimeError: shape [1455])" in _sentence(RuntimeError("shape [1455]"))
    assert "No such file" in _sentence(FileNotFoundError(2, "No such file or directory", "x"))
