"""The benchmark runs and reports; its numbers are not the matter here."""

from __future__ import annotations

import json

import pytest
import torch

from .bench_decode import main


def test_the_last_line_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        main(["--size", "smoke", "--repeats", "1", "--dtype", "fp32"])
    finally:
        torch.set_num_threads(threads)
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    cases = report["cases"]
    assert {name[0] for name in cases} == set("abcde")
    for name, case in cases.items():
        if name.startswith(("a", "b")):
            assert case["tokens_equal"] == 1
            assert case["forwards_ours"] < case["forwards_reference"]
    assert cases["a static-6, 4 blocks"]["forwards_ours"] == 24
    assert cases["a static-6, 4 blocks"]["forwards_reference"] == 1 + 4 * 7
