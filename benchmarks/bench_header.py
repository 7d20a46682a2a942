"""How fast is a big GGUF header read, beside gguf-py's reader?

Reading a header is bound by the vocabulary: hundreds of thousands of short strings that must be
stepped over one by one, because only each string's length says where the next begins. This
writes a file of Kimi-K2's proportions (61 layers, 1100 tensors, 164 000 tokens, 160 000 merges;
its tensor data is a hole, so it takes 9 MB of disk) and reads it in turns with `offload` and with
`gguf.GGUFReader`, each time in a fresh process, which also tells the peak memory.

    python benchmarks/bench_header.py [--rounds 7] [--keep FILE]

gguf-py maps the whole file and touches only the header; it is not slower for the hole.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

N_LAYER, N_TOKENS, N_MERGES = 61, 164_000, 160_000
TENSORS_PER_LAYER = 18
SEED = 7
F32, Q4_K = 0, 12

# What each reader does in its own process: import, then read once, timed without the import.
READERS = {
    "offload": ("from offload.source import read_header as read", "h.tensors"),
    "gguf.GGUFReader": ("from gguf import GGUFReader as read", "h.tensors"),
    "python alone": ("read = open", "()"),
}
CHILD = """
import sys, time
t0 = time.perf_counter()
{imports}
t1 = time.perf_counter()
h = read(sys.argv[1])
t2 = time.perf_counter()
import json
try:  # since exec; getrusage would also count what the parent held when it forked
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
except OSError:
    import resource
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = peak // 1024 if sys.platform == "darwin" else peak
print(json.dumps({{"import_s": t1 - t0, "read_s": t2 - t1, "peak_kib": peak, "n": len({n})}}))
"""


def _string(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def _words(n: int, pick: random.Random) -> bytes:
    """`n` strings as long as tokens are."""
    letters = bytes(range(97, 123))
    sizes = pick.choices(range(1, 15), weights=(2, 4, 8, 9, 9, 9, 8, 7, 6, 4, 3, 2, 1, 1), k=n)
    return b"".join(_string(bytes(pick.choices(letters, k=size))) for size in sizes)


def write_header(path: Path) -> int:
    """Write the file, a hole for its tensor data; returns its header's bytes."""
    pick = random.Random(SEED)
    arrays = [
        (b"tokens", 8, N_TOKENS, _words(N_TOKENS, pick)),
        (b"merges", 8, N_MERGES, _words(N_MERGES, pick)),
        (b"scores", 6, N_TOKENS, bytes(4 * N_TOKENS)),
        (b"token_type", 5, N_TOKENS, bytes(4 * N_TOKENS)),
    ]
    keys = [_string(b"general.architecture") + struct.pack("<I", 8) + _string(b"deepseek2")]
    for name, type_id, n, raw in arrays:
        head = _string(b"tokenizer.ggml." + name) + struct.pack("<IIQ", 9, type_id, n)
        keys.append(head + raw)
    for i in range(45):
        keys.append(_string(b"deepseek2.key_%d" % i) + struct.pack("<II", 4, i))
    infos, offset = [], 0
    for il in range(N_LAYER):
        for i in range(TENSORS_PER_LAYER):
            is_expert = i < 3
            shape = (2048, 7168, 384) if is_expert else (7168,)
            type_id = Q4_K if is_expert else F32
            dims = struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_id, offset)
            infos.append(_string(b"blk.%d.tensor_%d.weight" % (il, i)) + dims)
            offset += 2048 * 7168 * 384 // 256 * 144 if is_expert else 7168 * 4
    counts = struct.pack("<IQQ", 3, len(infos), len(keys))
    raw = b"".join((b"GGUF", counts, *keys, *infos))
    with open(path, "wb") as file:
        file.write(raw)
        file.truncate(-(-len(raw) // 32) * 32 + offset)
    return len(raw)


def measure(imports: str, n: str, path: Path) -> dict[str, float]:
    """Read once in a fresh process."""
    root = str(Path(__file__).resolve().parent.parent)
    result = subprocess.run(
        [sys.executable, "-c", CHILD.format(imports=imports, n=n), str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    measured: dict[str, float] = json.loads(result.stdout)
    return measured


def main() -> None:
    """Write the file, read it in turns, print one line per reader."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="reads per reader (default 7)")
    parser.add_argument("--keep", type=Path, help="write the file here and leave it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "big-vocabulary.gguf"
        header_bytes = write_header(path)
        print(
            f"header of {header_bytes / 1e6:.1f} MB: {N_LAYER * TENSORS_PER_LAYER} tensors, "
            f"{N_TOKENS} tokens, {N_MERGES} merges; {options.rounds} rounds in turns, seed {SEED}"
        )
        samples: dict[str, list[dict[str, float]]] = {name: [] for name in READERS}
        for _ in range(options.rounds):
            for name, (imports, n) in READERS.items():
                samples[name].append(measure(imports, n, path))
    print(f"{'reader':<16} {'read ms':>9} {'min':>8} {'max':>8} {'import ms':>10} {'peak MiB':>9}")
    median = {}
    for name, rows in samples.items():
        reads = [1e3 * row["read_s"] for row in rows]
        median[name] = statistics.median(reads)
        imports_ms = statistics.median(1e3 * row["import_s"] for row in rows)
        peak_mib = max(row["peak_kib"] for row in rows) / 1024
        print(
            f"{name:<16} {median[name]:>9.1f} {min(reads):>8.1f} {max(reads):>8.1f} "
            f"{imports_ms:>10.1f} {peak_mib:>9.1f}"
        )
    ratio = median["gguf.GGUFReader"] / median["offload"]
    print(f"gguf.GGUFReader takes {ratio:.0f} times as long as offload (medians)")


if __name__ == "__main__":
    main()
