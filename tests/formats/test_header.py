"""The strict header: every damage is refused from the header alone, by a sentence that names it."""

import json
import struct
import time

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lib_lora.errors import FileFormatError
from lib_lora.formats.header import MAX_HEADER_BYTES, read_header


def entry(dtype="F32", shape=(2, 3), offsets=(0, 24)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def raw(header, data=b"\0" * 24):
    """Return the bytes of a file with this header: an object, or the text as it is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tight(content):
    """Return a file whose header has no space between its values, which is how the safetensors library spells it."""
    length = int.from_bytes(content[:8], "little")
    if 8 + length > len(content):
        return content
    header = content[8 : 8 + length].replace(b", ", b",").replace(b": ", b":")
    return raw(header, content[8 + length :])


def refused(path, content):
    path.write_bytes(content)
    with pytest.raises(FileFormatError) as caught:
        read_header(path)
    return str(caught.value)


W = json.dumps(entry()).encode()
TWICE = b'{"w": ' + W + b', "w": ' + W + b"}"
HOSTILE = {
    "empty file": (b"", "0 bytes"),
    "length beyond the file": (struct.pack("<Q", 2**63) + b"{}", "announces a header"),
    "no object": (raw(b"[]"), "not a JSON object"),
    "no JSON": (raw(b'{"w": '), "cannot be read, after 'w'"),
    "nested without end": (raw(b'{"w":' + b"[" * 100_000), "cannot be read, after 'w'"),
    "number without end": (raw(b'{"w":' + b"9" * 10_000 + b"}"), "tensor 'w'"),
    "a comma too many": (raw(b'{"w":' + W + b",}"), "a name or the end is missing"),
    "a comma too few": (raw(b'{"v":' + W + b'"w":' + W + b"}"), "a name or the end is missing"),
    "two objects": (raw(b'{"w":' + W + b"}{}"), "more than one object"),
    "a name beyond all measure": (raw(b'{"' + b"w" * 1001 + b'":' + W + b"}"), "a name is missing"),
    "a name with half a character": (raw(b'{"\\ud800":' + W + b"}"), "half a character"),
    "not UTF-8": (raw(b'{"\xff": 1}'), "not UTF-8"),
    "duplicate": (raw(TWICE), "'w' is there twice"),
    "duplicate, spelled otherwise": (raw(TWICE.replace(b'"w"', b'"\\u0077"', 1)), "'w' is there"),
    "duplicate field": (
        raw(b'{"w":' + W[:-1] + b',"dtype":"F32"}}'),
        "after 'w': a field",
    ),
    "duplicate metadata": (raw(b'{"__metadata__":{"a":"1","a":"2"}}', b""), "'a' is there twice"),
    "unknown dtype": (raw({"w": entry(dtype="F31")}), "'w' the dtype 'F31'"),
    "dtype no text": (raw({"w": entry(dtype=["F32"])}), "'w' the dtype"),
    "missing field": (raw({"w": {"dtype": "F32", "shape": [6]}}), "'w'"),
    "negative size": (raw({"w": entry(shape=(-2, -3))}), "'w' the shape"),
    "true as a size": (raw({"w": entry(shape=(True, 6))}), "'w' the shape"),
    "fraction as a size": (raw({"w": entry(shape=(1.5, 4))}), "'w' the shape"),
    "shape no list": (raw({"w": {**entry(), "shape": 6}}), "'w' the shape"),
    "a hundred dimensions": (raw({"w": entry(shape=(1,) * 100)}), "'w' the shape"),
    "a thousand dimensions": (raw({"w": entry(shape=(1,) * 1000)}), "after 'w'"),
    "product overflow": (raw({"w": entry(shape=(2**40, 2**40))}), "impossible shape"),
    "overflow hidden by a 0": (
        raw({"w": {**entry(shape=(2**63, 2**63, 0)), "data_offsets": [0, 0]}}, b""),
        "impossible shape",
    ),
    "bytes unlike the shape": (raw({"w": entry(shape=(2, 2))}), "F32 of shape"),
    "offsets backwards": (raw({"w": entry(offsets=(24, 0))}), "no range"),
    "three offsets": (raw({"w": entry(offsets=(0, 12, 24))}), "no range"),
    "out of range": (raw({"w": entry(offsets=(24, 48))}), "cut short"),
    "truncated": (raw({"w": entry()}, b"\0" * 23), "tensor 'w' reaches to byte"),
    "overlap": (raw({"v": entry(), "w": entry()}), "'v' and 'w' overlap"),
    "gap": (raw({"w": entry(offsets=(8, 32))}, b"\0" * 32), "gap of 8 bytes before tensor 'w'"),
    "bytes left over": (raw({"w": entry()}, b"\0" * 25), "1 bytes after its last tensor"),
    "metadata no text": (raw({"__metadata__": {"rank": 4}, "w": entry()}), "'rank'"),
    "metadata not UTF-8": (raw(b'{"__metadata__":{"a":"\xfc"}}', b""), "not UTF-8 (byte 30)"),
    "metadata no object": (raw({"__metadata__": "x", "w": entry()}), "metadata"),
    "zipped pickle": (b"PK\x03\x04" + b"\0" * 60, "pickle"),
    "plain pickle": (b"\x80\x02}q\x00." + b"\0" * 60, "pickle"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("spelled", [bytes, tight])
def test_damage_is_refused_by_name(tmp_path, name, spelled):
    content, named = HOSTILE[name]
    message = refused(tmp_path / "file.safetensors", spelled(content))
    assert named in message
    assert "file.safetensors" in message


@pytest.mark.parametrize("suffix", [".ckpt", ".pt", ".PTH", ".bin"])
def test_a_pickle_by_its_name_is_refused_with_the_remedy(tmp_path, suffix):
    message = refused(tmp_path / f"old{suffix}", b"anything")
    assert "can run code" in message
    assert "Checkpoint Merger" in message


@pytest.mark.parametrize("indent", [None, 2])
def test_any_spelling_of_the_same_json_is_read(tmp_path, indent):
    content = {"ä\n": dict(reversed(entry().items())), "__metadata__": {'"': "\\\U0001f600"}}
    for ascii_only in (True, False):
        text = json.dumps(content, indent=indent, ensure_ascii=ascii_only).encode() + b"  \n"
        file = tmp_path / "good.safetensors"
        file.write_bytes(raw(text))
        header = read_header(file)
        assert header.shapes == {"ä\n": (2, 3)}
        assert header.metadata == {'"': "\\\U0001f600"}


@pytest.mark.parametrize("length", [0x280, 0x480])
def test_a_header_whose_length_begins_as_a_pickle_does_is_no_pickle(tmp_path, length):
    file = tmp_path / "good.safetensors"
    file.write_bytes(raw(json.dumps({"w": entry()}).encode().ljust(length)))
    assert file.read_bytes()[:2] in (b"\x80\x02", b"\x80\x04")
    assert read_header(file).shapes == {"w": (2, 3)}


def test_an_empty_header_is_that_of_a_file_without_tensors(tmp_path):
    file = tmp_path / "empty.safetensors"
    file.write_bytes(raw(b'{"__metadata__": { } } ', b""))
    header = read_header(file)
    assert (header.tensors, header.metadata) == ({}, {})


def test_a_header_longer_than_the_limit_is_refused_before_it_is_read(tmp_path):
    file = tmp_path / "long.safetensors"
    with file.open("wb") as out:  # a sparse file: the bytes are never there
        out.write(struct.pack("<Q", MAX_HEADER_BYTES + 1))
        out.truncate(MAX_HEADER_BYTES * 2)
    with pytest.raises(FileFormatError, match="at most 25,000,000"):
        read_header(file)


def test_no_tensor_is_read(tmp_path):
    file = tmp_path / "huge.safetensors"
    size = 2**36
    with file.open("wb") as out:  # 64 GiB that are not there
        out.write(raw({"w": entry(dtype="U8", shape=(size,), offsets=(0, size))}, b""))
        out.truncate(out.tell() + size)
    assert read_header(file).shapes == {"w": (size,)}


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileFormatError, match=r"no file.*gone\.safetensors"):
        read_header(tmp_path / "gone.safetensors")


def test_a_good_file_is_read_as_the_safetensors_library_reads_it(tmp_path):
    file = tmp_path / "good.safetensors"
    tensors = {
        "a": torch.zeros(2, 3, dtype=torch.float16),
        "b": torch.zeros(0, 4),
        "c": torch.tensor(1.5),
        "d": torch.zeros(5, dtype=torch.int64),
    }
    save_file(tensors, file, metadata={"ß": "ü"})
    header = read_header(file)
    with safe_open(file, "pt") as theirs:
        assert header.metadata == theirs.metadata()
        assert set(header.tensors) == set(theirs.keys())
        for key in header.tensors:
            found = theirs.get_slice(key)
            assert header.shapes[key] == tuple(found.get_shape())
            assert header.tensors[key].dtype == found.get_dtype()
    assert header.file_bytes == file.stat().st_size


def test_a_header_of_2500_tensors_takes_few_times_what_json_takes(tmp_path):
    """Some 40 ms on a machine of 2020, 3.7 times what json.loads takes for the same text without a check."""
    file = tmp_path / "many.safetensors"
    name = "lora_unet_down_blocks_1_attentions_0_transformer_blocks_{}_attn1_to_q.lora_up.weight"
    save_file({name.format(n): torch.zeros(4, 1) for n in range(2500)}, file)
    content = file.read_bytes()
    text = content[8 : 8 + int.from_bytes(content[:8], "little")]

    def taken(work):
        start = time.process_time()
        work()
        return time.process_time() - start

    turns = [(taken(lambda: read_header(file)), taken(lambda: json.loads(text))) for _ in range(10)]
    ours, theirs = (min(times) for times in zip(*turns, strict=True))
    assert ours < 6 * theirs, (ours, theirs)
