"""Our writer: the bytes follow from the content alone, the safetensors library reads them, a failure leaves nothing."""

import json
import math
import os
import time

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from lib_lora.errors import FileFormatError
from lib_lora.formats.header import read_header
from lib_lora.formats.stream import (
    RUN_BYTES,
    TORCH_DTYPES,
    TensorReader,
    TensorWriter,
    is_finite,
    write_tensors,
)


def every_dtype():
    draw = torch.Generator().manual_seed(0)
    drawn = {
        name: (torch.randn(3, 5, generator=draw) * 9).to(dtype)
        for name, dtype in TORCH_DTYPES.items()
    }
    return drawn | {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 7)}


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def test_every_dtype_comes_back_through_us_and_through_the_safetensors_library(tmp_path):
    file = tmp_path / "all.safetensors"
    tensors = every_dtype()
    write_tensors(file, tensors, {"b": "2", "a": "ä"})
    theirs = load_file(file)
    with TensorReader(file) as reader:
        for key, tensor in tensors.items():
            for found in (reader.read(key), theirs[key]):
                assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
                assert torch.equal(bits(found), bits(tensor))
    with safe_open(file, "pt") as opened:
        assert opened.metadata() == {"a": "ä", "b": "2"}


def test_the_data_lie_as_the_safetensors_library_lays_them(tmp_path):
    file = tmp_path / "all.safetensors"
    tensors = every_dtype()
    write_tensors(file, tensors, {})
    theirs = save(tensors)
    after_header = 8 + int.from_bytes(theirs[:8], "little")
    assert file.read_bytes()[read_header(file).data_start :] == theirs[after_header:]


def test_equal_content_gives_equal_bytes_whatever_the_order(tmp_path):
    tensors, metadata = every_dtype(), {"a": "1", "b": "2", "c": "3"}
    files = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    write_tensors(files[0], tensors, metadata)
    write_tensors(files[1], dict(reversed(tensors.items())), dict(reversed(list(metadata.items()))))
    assert files[0].read_bytes() == files[1].read_bytes()
    write_tensors(files[1], tensors, metadata | {"a": "0"})
    assert files[0].read_bytes() != files[1].read_bytes()


def test_metadata_that_are_no_text_do_not_stop_the_file(tmp_path):
    """As where the name of a folder of pictures holds bytes of another encoding."""
    told = {"folder": os.fsdecode(b"caf\xe9 \xc3\xa9")}
    write_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(2)}, told)
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert file.metadata() == {"folder": "caf? é"}


def test_the_data_begin_at_a_multiple_of_eight_bytes(tmp_path):
    for length in range(9):
        file = tmp_path / "aligned.safetensors"
        write_tensors(file, {"w" * (length + 1): torch.zeros(1)}, {})
        assert read_header(file).data_start % 8 == 0


def test_a_tensor_that_is_not_contiguous_is_written_row_by_row(tmp_path):
    file = tmp_path / "turned.safetensors"
    tensor = torch.arange(6.0).reshape(2, 3).T
    write_tensors(file, {"w": tensor}, {})
    assert torch.equal(load_file(file)["w"], tensor)


def announced():
    return {"v": (torch.float32, (2,)), "w": (torch.float32, (3,))}


def write_half(file):
    with TensorWriter(file, announced(), {}) as writer:
        writer.write("v", torch.zeros(2))
        raise RuntimeError("in the middle")


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path):
    file = tmp_path / "kept.safetensors"
    write_tensors(file, {"v": torch.ones(1)}, {})
    before = file.read_bytes()
    with pytest.raises(RuntimeError, match="in the middle"):
        write_half(file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_a_tensor_that_was_not_written_is_named_and_no_file_is_left(tmp_path):
    with (
        pytest.raises(ValueError, match="not written: w"),
        TensorWriter(tmp_path / "new.safetensors", announced(), {}) as writer,
    ):
        writer.write("v", torch.zeros(2))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [torch.zeros(3), torch.zeros(2, dtype=torch.float16)])
def test_a_tensor_other_than_announced_is_refused(tmp_path, wrong):
    with (
        pytest.raises(ValueError, match="'v' was announced"),
        TensorWriter(tmp_path / "new.safetensors", announced(), {}) as writer,
    ):
        writer.write("v", wrong)


def test_a_tensor_is_written_once(tmp_path):
    tensor = torch.zeros(2)
    with TensorWriter(tmp_path / "new.safetensors", {"v": (torch.float32, (2,))}, {}) as writer:
        writer.write("v", tensor)
        with pytest.raises(ValueError, match="'v' was announced once"):
            writer.write("v", tensor)


def test_a_dtype_that_pytorch_lacks_is_named_when_it_is_read(tmp_path):
    file = tmp_path / "u16.safetensors"
    text = json.dumps({"w": {"dtype": "U16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"\0\0")
    with TensorReader(file) as reader, pytest.raises(FileFormatError, match="'w' as U16"):
        reader.read("w")


FLOATS = [dtype for dtype in TORCH_DTYPES.values() if dtype.is_floating_point]
NOT_FINITE = [
    (dtype, value)
    for dtype in FLOATS
    for value in (math.nan, math.inf, -math.inf)
    if dtype != torch.float8_e4m3fn or math.isnan(value)  # which has no infinity
]


@pytest.mark.parametrize(("dtype", "value"), NOT_FINITE, ids=str)
def test_a_number_that_is_none_is_found_where_it_is_read(tmp_path, dtype, value):
    file = tmp_path / "damaged.safetensors"
    bad = torch.zeros(3, 5)
    bad[1, 2] = value
    tensors = {"before": torch.ones(2).to(dtype), "w": bad.to(dtype), "z": torch.ones(7).to(dtype)}
    write_tensors(file, tensors, {})
    with TensorReader(file) as reader:
        for keys in (["w"], ["z", "w", "before"]):
            with pytest.raises(FileFormatError, match=r"damaged.*'w' holds 1 numbers.* of 15"):
                reader.read_many(keys)
        assert reader.read_many(["before", "z"]).keys() == {"before", "z"}
        assert torch.equal(bits(reader.read_to_copy("w")), bits(tensors["w"]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_finite_number_is_finite(dtype):
    limits = torch.finfo(dtype)
    ends = [limits.max, limits.min, limits.smallest_normal, 0.0, -0.0, -limits.smallest_normal]
    assert is_finite(torch.tensor(ends, dtype=torch.float64).to(dtype))
    if dtype.itemsize <= 2:  # every number there is, against torch's own answer
        count = 256**dtype.itemsize
        every = torch.arange(count).to({1: torch.uint8, 2: torch.int16}[dtype.itemsize]).view(dtype)
        step = 1 if count == 256 else 97
        wrong = [not is_finite(every[n : n + 1]) for n in range(0, count, step)]
        assert wrong == (~every.float().isfinite())[::step].tolist()
        assert any(wrong)


def test_the_last_number_of_a_large_tensor_is_looked_at():
    large = torch.zeros(RUN_BYTES + 1, dtype=torch.float16)
    assert is_finite(large)
    large[-1] = math.inf
    assert not is_finite(large)


def test_integers_are_always_finite():
    for dtype in TORCH_DTYPES.values():
        if not dtype.is_floating_point:
            assert is_finite(torch.full((64,), 0x7F, dtype=torch.uint8).to(dtype))
    assert is_finite(torch.full((4,), 0x7FFF, dtype=torch.int16))  # the bits of a NaN in fp16
    assert not is_finite(torch.full((4,), 0x7FFF, dtype=torch.int16).view(torch.float16))


def test_looking_for_nan_takes_far_less_than_torch_takes():
    """Measured about 20 times less; on one core of 2020 that is 4 GB/s, half of what reading the memory allows."""
    numbers = torch.ones(2**21, dtype=torch.float16)

    def taken(look):
        times = []
        for _ in range(5):
            start = time.process_time()
            assert look()
            times.append(time.process_time() - start)
        return min(times)

    assert taken(lambda: is_finite(numbers)) < taken(lambda: numbers.isfinite().all()) / 2


def test_neighbours_are_read_as_each_alone(tmp_path):
    file = tmp_path / "many.safetensors"
    draw = torch.Generator().manual_seed(0)
    tensors = {f"half {n}": torch.randn(n, 300_000, generator=draw).half() for n in range(4)}
    tensors |= {f"wide {n}": torch.randn(n, 3, generator=draw) for n in range(4)}
    write_tensors(file, tensors, {})
    wanted = [key for key in reversed(tensors) if key != "wide 2"]
    with TensorReader(file) as reader:
        found = reader.read_many(wanted)
        assert found.keys() == set(wanted)
        for key in wanted:
            assert torch.equal(found[key], tensors[key])
            assert torch.equal(reader.read(key), tensors[key])
        with pytest.raises(KeyError):
            reader.read("nowhere")
