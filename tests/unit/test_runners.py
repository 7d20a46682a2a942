"""Cells as llama-bench command lines, and what becomes of its answers."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offload.device import device_by_name
from offload.errors import LlamaCppError
from offload.units import GIB
from tests.bench_fakes import cards, model
from tuner.cells import Bench, Cell, Sizes, Timed, candidate_cells
from tuner.runners import LlamaBench, timed_of

_SIZES = Sizes(n_prompt=512, n_gen=32, n_ubatch=512, n_depth=1024)
_HELP = """
usage: llama-bench
  -m, --model <filename>
  -p, --n-prompt <n>
  -dev, --device <dev0/dev1/...>
  -rpc, --rpc <rpc_servers>
  -ngl, --n-gpu-layers <n>
  -ts, --tensor-split <ts0/ts1/..>
  -ot --override-tensor <tensor name pattern>=<buffer type>;...
  -b, --batch-size <n>
  -ub, --ubatch-size <n>
  -ctk, --cache-type-k <t>
  -ctv, --cache-type-v <t>
  -lm, --load-mode <none|mmap>
  -nopo, --no-op-offload <0|1>
  --no-host <0|1>
"""
_RECORD = {
    "build_commit": "abc", "build_number": 9, "model_filename": "/home/somebody/m.gguf",
    "cpu_mask": "0x0", "n_prompt": 512, "n_gen": 0, "n_depth": 0, "samples_ns": [5, 6, 7],
}  # fmt: skip


def _program(tmp_path: Path, body: str) -> Path:
    """A llama-bench that answers as told, after the questions about itself."""
    path = tmp_path / "llama-bench"
    path.write_text(
        f"#!{sys.executable}\nimport json, os, sys, time\n"
        f"if '--help' in sys.argv: print({_HELP!r}); sys.exit()\n"
        "if '--version' in sys.argv: print('version: 11434 (abc)'); sys.exit()\n"
        f"record = {_RECORD!r}\n{body}"
    )
    path.chmod(0o755)
    return path


def _bench(n_cards: int = 2) -> Bench:
    return Bench(model=model(), devices=cards(n_cards), n_threads=3)


def _cell(label: str, bench: Bench | None = None) -> Cell:
    return {c.label: c for c in candidate_cells(bench or _bench(), _SIZES)}[label]


def _run(program: Path, cell: Cell) -> list[dict[str, Any]]:
    return list(LlamaBench(program=program).run(_bench(), cell, 3))


def _flags(argv: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(argv[1::2], argv[2::2], strict=True))


def test_the_command_line_says_everything(tmp_path: Path) -> None:
    """Placement, sizes, threads, repetitions; one JSON object per line."""
    runner = LlamaBench(program=_program(tmp_path, ""))
    cell = _cell("own 2/4")
    flags = _flags(runner.argv(_bench(), cell, cell.tests, 3))
    assert flags["-ts"] == "4/5" and flags["-ngl"] == "9" and flags["-dev"] == "CUDA0/CUDA1"
    assert flags["-ot"] == r"blk\.[0145]\.ffn_.*exps=CPU"
    assert (flags["-p"], flags["-n"]) == ("128,512", "32") and "-d" not in flags
    assert (flags["-t"], flags["-r"], flags["-o"], flags["-lm"]) == ("3", "3", "jsonl", "none")
    no_host = _cell("all, --no-host")
    assert _flags(runner.argv(_bench(), no_host, no_host.tests, 3))["--no-host"] == "1"
    unaided = _cell("all, no op-offload")
    assert _flags(runner.argv(_bench(), unaided, unaided.tests, 3))["-nopo"] == "1"


def test_cards_behind_rpc_have_a_switch_of_their_own(tmp_path: Path) -> None:
    """Where no card pins host memory, weights are repacked unless --repack says no."""
    device = device_by_name("RPC0", 24 * GIB, endpoint="127.0.0.1:50052")
    bench = Bench(model=model(), devices=(device,), endpoints=("127.0.0.1:50052",))
    cell = _cell("all, not repacked", bench)
    argv = LlamaBench(program=_program(tmp_path, "")).argv(bench, cell, cell.tests, 2)
    flags = _flags(argv)
    assert flags["--repack"] == "0"
    assert flags.get("-rpc", flags.get("--rpc")) == "127.0.0.1:50052"


def test_records_lose_what_names_this_machine(tmp_path: Path) -> None:
    """No path stays, the build is that of --version, the times are untouched."""
    program = _program(tmp_path, "print('chatter'); print(json.dumps(record))\n")
    (record,) = _run(program, _cell("none, -ub 128"))
    assert "somebody" not in json.dumps(record) and "cpu_mask" not in record
    assert record["samples_ns"] == [5, 6, 7]
    assert record["build_number"] == 11434
    assert timed_of(_cell("none"), record) == Timed(n_prompt=512)
    assert timed_of(_cell("none"), {**record, "n_prompt": 7}) is None


def test_builds_that_know_no_depth(tmp_path: Path) -> None:
    """Their records lack the field; what they time is at the start of the context."""
    program = _program(tmp_path, "del record['n_depth']; print(json.dumps(record))\n")
    (record,) = _run(program, _cell("none, -ub 128"))
    assert timed_of(_cell("none"), record) == Timed(n_prompt=512)


def test_records_come_while_the_program_runs(tmp_path: Path) -> None:
    """The first is there before the second is made: a kill loses one, not both."""
    body = (
        "print(json.dumps(record), flush=True)\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n"
        "print(json.dumps(record | {'n_prompt': 0, 'n_gen': 32}))\n"
    )
    records = LlamaBench(program=_program(tmp_path, body)).run(_bench(), _cell("none"), 3)
    assert next(records)["n_prompt"] == 512
    (tmp_path / "go").write_text("")
    assert next(records)["n_gen"] == 32
    assert next(records, None) is None


@pytest.mark.parametrize(
    ("body", "exit_code"),
    [("print('error: failed to load model', file=sys.stderr); sys.exit(1)\n", 1),
     ("print('ggml_abort: error', file=sys.stderr); sys.stderr.flush(); os.abort()\n", 134)],
)  # fmt: skip
def test_a_program_that_fails(body: str, exit_code: int, tmp_path: Path) -> None:
    """Its last words and how it ended, whether it exited or was ended by a signal."""
    with pytest.raises(LlamaCppError, match="error") as caught:
        _run(_program(tmp_path, body), _cell("none"))
    assert caught.value.exit_code == exit_code


def test_depths_are_runs_of_their_own(tmp_path: Path) -> None:
    """llama-bench multiplies depths with tests, so tests at two depths are two runs."""
    body = (
        "if '-d' in sys.argv: record['n_depth'] = int(sys.argv[sys.argv.index('-d') + 1])\n"
        "print(json.dumps(record))\n"
    )
    cell = replace(_cell("none"), tests=(Timed(n_prompt=512), Timed(n_prompt=512, n_depth=64)))
    assert [r["n_depth"] for r in _run(_program(tmp_path, body), cell)] == [0, 64]
