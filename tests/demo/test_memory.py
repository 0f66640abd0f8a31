import subprocess
import sys
import time

from lib_lora.demo.memory import PeakMemory, tree_bytes

MIB = 2**20


def test_a_child_process_counts():
    code = "block = bytearray(200 * 2**20); print('ready', flush=True); input()"
    before = tree_bytes()
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        child.stdout.readline()
        grown = tree_bytes() - before
    finally:
        child.communicate(b"\n")
    assert 200 * MIB <= grown < 260 * MIB


def test_the_peak_is_kept_after_the_memory_is_given_back():
    with PeakMemory(every_seconds=0.02) as peak:
        before = tree_bytes()
        block = bytearray(100 * MIB)
        time.sleep(0.3)
        del block
    assert peak.bytes >= before + 95 * MIB
