"""FPF with DistributedDataParallel; more in tests/compute/test_distributed.py."""

import re

from two_tasks import EXAMPLES

from helpers import in_processes


def test_k_fpf_gains_30_points_on_digits_with_torchrun():
    printed = in_processes(2, EXAMPLES / "distributed_digits.py", "plain", "k-FPF")
    found = {way: float(value) for way, value in re.findall(r"^(\S+) +([\d.]+) %$", printed, re.M)}
    assert found["k-FPF"] >= found["plain"] + 30
    assert "chosen" in printed
