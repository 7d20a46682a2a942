"""The parser of llama.cpp's log, on lines that llama.cpp printed."""

from __future__ import annotations

import pytest

from offload.engine.log import (
    last_words,
    parse_loads,
    parse_log,
    parse_out_of_memory,
    telling_line,
)
from offload.units import MIB

# llama-server b11434, six layers over two virtual cards, -v, real weights
SERVER = """\
0.00.017.100 I llama_model_loader: loaded meta data with 16 key-value pairs and 75 tensors from m
0.00.017.859 D load_tensors: layer   0 assigned to device RPC0, is_swa = 0
0.00.017.860 D load_tensors: layer   1 assigned to device RPC0, is_swa = 0
0.00.017.861 D load_tensors: layer   2 assigned to device RPC1, is_swa = 0
0.00.018.166 D tensor blk.1.ffn_gate_exps.weight (0 MiB q8_0) buffer type overridden to CPU
0.00.018.184 D tensor blk.1.ffn_down_exps.weight (576 MiB q3_K) buffer type overridden to CPU
0.00.018.190 D tensor blk.0.ffn_up_exps.weight (0 MiB q8_0) buffer type overridden to \
RPC0[127.0.0.1:51031]
0.00.018.200 D done_getting_tensors: tensor 'token_embd.weight' (q8_0) (and 6 others) cannot be \
used with preferred buffer type CPU_REPACK, using CPU instead
0.00.048.790 I load_tensors: offloaded 7/7 layers to GPU
0.00.048.802 I load_tensors:   CPU_Mapped model buffer size =     5.13 MiB
0.00.048.803 I load_tensors: RPC0[127.0.0.1:35207] model buffer size =     2.26 MiB
0.00.048.803 I load_tensors: RPC0[127.0.0.1:44541] model buffer size =     2.12 MiB
0.00.066.539 I llama_context:        CPU  output buffer size =     0.01 MiB
0.00.069.375 I llama_kv_cache: RPC0[127.0.0.1:35207] KV buffer size =     3.00 MiB
0.00.071.773 I llama_kv_cache: RPC0[127.0.0.1:44541] KV buffer size =     3.00 MiB
0.00.071.884 I llama_kv_cache: size =    6.00 MiB (  4096 cells,   6 layers,  4/1 seqs), \
K (f16):    3.00 MiB, V (f16):    3.00 MiB
0.00.084.560 I sched_reserve: RPC0[127.0.0.1:44541] compute buffer size =     7.01 MiB
0.00.084.587 I sched_reserve: RPC0[127.0.0.1:35207] compute buffer size =     6.51 MiB
0.00.084.604 I sched_reserve:        CPU compute buffer size =     6.03 MiB
0.00.084.621 I sched_reserve: graph: nodes = 315, splits = 7, input objects = 4, input tensors = 9
0.00.456.749 I common_memory_breakdown_print: | memory breakdown [MiB]     | total    free    \
self   model   context   compute    unaccounted |
0.00.456.752 I common_memory_breakdown_print: |   - RPC0 (127.0.0.1:44541) | 24105 = 24105 + (  \
12 =     2 +       3 +       7) +         -12 |
0.00.456.753 I common_memory_breakdown_print: |   - RPC1 (127.0.0.1:35207) | 24105 = 24105 + (  \
11 =     2 +       3 +       6) +         -11 |
0.00.456.753 I common_memory_breakdown_print: |   - Host                   |                    \
11 =     5 +       0 +       6                |
0.00.456.871 I common_memory_breakdown_print: |   - CPU_REPACK             |                   \
576 =   576 +       0 +       0                |
0.00.456.872 D ~llama_context: RPC0[127.0.0.1:44541] compute buffer size is   7.0137 MiB, \
matches expectation of   7.0137 MiB
""".splitlines()

# a build of 2025 with CUDA cards, from public logs
OLDER = """\
llama_model_loader: loaded meta data with 37 key-value pairs and 1131 tensors from q.gguf
load_tensors: offloaded 95/95 layers to GPU
load_tensors:        CUDA0 model buffer size = 21049.11 MiB
load_tensors:        CUDA1 model buffer size = 20931.27 MiB
load_tensors:   CPU_Mapped model buffer size = 47131.04 MiB
load_tensors:   CPU_Mapped model buffer size = 46910.62 MiB
llama_kv_cache_unified:      CUDA0 KV buffer size =   816.00 MiB
llama_kv_cache_unified:      CUDA0 KV buffer size =   100.00 MiB
llama_memory_recurrent:      CUDA1 RS buffer size =    62.81 MiB
llama_context: pipeline parallelism enabled (n_copies=4)
llama_context:      CUDA0 compute buffer size =   774.00 MiB
llama_context:      CUDA0 compute buffer size =   304.75 MiB
llama_context:  CUDA_Host compute buffer size =    40.01 MiB
llama_context: graph splits = 166 (with bs=512), 94 (with bs=1)
""".splitlines()


def test_layers_and_overrides() -> None:
    """Every layer's device and every rule's effect are read, RPC buffer names included."""
    log = parse_log(SERVER)
    assert log.layers == ("RPC0", "RPC0", "RPC1")
    assert log.overridden == {
        "blk.1.ffn_gate_exps.weight": "CPU",
        "blk.1.ffn_down_exps.weight": "CPU",
        "blk.0.ffn_up_exps.weight": "RPC0[127.0.0.1:51031]",
    }
    assert (log.offloaded, log.n_splits, log.pipeline_parallel) == ((7, 7), 7, False)


def test_buffers_of_a_server() -> None:
    """Sizes are those printed; the closing check of compute buffers is not a new size."""
    log = parse_log(SERVER)
    assert log.bytes_of("model") == {
        "CPU_Mapped": round(5.13 * MIB),
        "RPC0[127.0.0.1:35207]": round(2.26 * MIB),
        "RPC0[127.0.0.1:44541]": round(2.12 * MIB),
    }
    assert log.bytes_of("KV")["RPC0[127.0.0.1:35207]"] == 3 * MIB
    assert log.bytes_of("compute")["RPC0[127.0.0.1:44541]"] == round(7.01 * MIB)
    assert log.bytes_of("output") == {"CPU": round(0.01 * MIB)}
    assert log.cache_bytes == 6 * MIB


def test_buffers_of_an_older_build() -> None:
    """Parts of a model or cache on one device add up; a graph reserved again replaces."""
    log = parse_log(OLDER)
    assert log.bytes_of("model")["CPU_Mapped"] == round(47131.04 * MIB) + round(46910.62 * MIB)
    assert log.bytes_of("KV") == {"CUDA0": 916 * MIB}
    assert log.bytes_of("RS") == {"CUDA1": round(62.81 * MIB)}
    assert log.bytes_of("compute") == {
        "CUDA0": round(304.75 * MIB),
        "CUDA_Host": round(40.01 * MIB),
    }
    assert log.pipeline_parallel
    assert log.n_splits == 166
    assert log.layers == ()


def test_memory_table() -> None:
    """The breakdown table gives each device, the host, and buffers that are neither."""
    rows = {row.name: row for row in parse_log(SERVER).table}
    assert list(rows) == ["RPC0", "RPC1", "Host", "CPU_REPACK"]
    first = rows["RPC0"]
    assert (first.description, first.total_mib, first.free_mib) == ("127.0.0.1:44541", 24105, 24105)
    assert (first.model_mib, first.context_mib, first.compute_mib) == (2, 3, 7)
    assert rows["Host"].total_mib is None
    assert rows["CPU_REPACK"].model_mib == 576


def test_table_row_with_a_long_description() -> None:
    """A card's description may hold blanks and brackets; unaccounted memory may be negative."""
    line = (
        "llama_memory_breakdown_print: |   - CUDA0 (RTX 2080 Ti (mod)) | 22528 = 1203 + "
        "(21049 = 20130 +     816 +     103) +         276 |"
    )
    (row,) = parse_log([line]).table
    assert (row.name, row.description) == ("CUDA0", "RTX 2080 Ti (mod)")
    assert (row.free_mib, row.model_mib) == (1203, 20130)
    assert (row.context_mib, row.compute_mib) == (816, 103)


def test_several_loads() -> None:
    """A log in which `--fit` loads first gives one value per load, and the last by default."""
    first, second = parse_loads([*OLDER, *SERVER])
    assert first.bytes_of("model").keys() == {"CUDA0", "CUDA1", "CPU_Mapped"}
    assert second == parse_log([*OLDER, *SERVER]) == parse_log(SERVER)


@pytest.mark.parametrize(
    ("line", "buffer_type", "n_bytes"),
    [
        (
            "alloc_tensor_range: failed to allocate CUDA1 buffer of size 21335654400",
            "CUDA1",
            21335654400,
        ),
        (
            "ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 773849088",
            "CUDA0",
            773849088,
        ),
        (
            "0.01.2 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 24835.38 MiB on "
            "device 1: cudaMalloc failed: out of memory",
            "device 1",
            round(24835.38 * MIB),
        ),
        ("ggml_vulkan: Device memory allocation of size 2147483648 failed.", "", 2147483648),
        (
            "ggml_metal_buffer_init: error: failed to allocate buffer, size =   512.00 MiB",
            "",
            512 * MIB,
        ),
        (
            "llama_model_load: error loading model: unable to allocate CUDA1 buffer",
            "CUDA1",
            None,
        ),
        ("Failed to allocate buffer type CUDA1", "CUDA1", None),
        (
            "E alloc_buffer: failed to allocate RPC0[127.0.0.1:51031] buffer of size 1024",
            "RPC0[127.0.0.1:51031]",
            1024,
        ),
    ],
)
def test_out_of_memory(line: str, buffer_type: str, n_bytes: int | None) -> None:
    """Each backend's words for a failed allocation name the device and the size they print."""
    failure = parse_out_of_memory(line)
    assert failure is not None
    assert (failure.buffer_type, failure.n_bytes) == (buffer_type, n_bytes)
    assert parse_log([line]).failures == (failure,)


@pytest.mark.parametrize(
    "line",
    [
        "llama_context: failed to allocate output buffer of size 12.5 MiB",
        "ggml_cuda_host_malloc: failed to allocate 512.00 MiB of pinned memory: no such thing",
        "load_tensors:        CUDA0 model buffer size = 21049.11 MiB",
        "",
    ],
)
def test_not_out_of_device_memory(line: str) -> None:
    """Sizes in whole lines of success, or of memory that is not a device's, are no failure."""
    assert parse_out_of_memory(line) is None


def test_telling_line_skips_noise() -> None:
    """The cause is preferred to its consequences and to lines that only sound bad."""
    lines = [
        "print_info: rope_finetuned        = unknown",
        "done_getting_tensors: tensor 'token_embd.weight' (q8_0) (and 0 others) cannot be used "
        "with preferred buffer type CPU_REPACK, using CPU instead",
        "llama_init_from_model: quantized V cache requires flash_attn to be enabled",
        "llama_model_load_from_file_impl: failed to load model",
    ]
    assert telling_line(lines) == lines[2]
    assert telling_line(lines[:2]) == ""
    assert telling_line(["all is well", "the end", ""]) == "the end"
    assert telling_line([]) == ""


def test_last_words_are_bounded() -> None:
    """However long a log is, an error carries only its last lines, blank ones left out."""
    lines = [f"line {i}" if i % 2 else "  " for i in range(100)]
    assert last_words(lines, 3) == ("line 95", "line 97", "line 99")


def test_hostile_lines() -> None:
    """Lines of a program that is not llama.cpp cost no more time than reading them."""
    lines = ["layer " * 20000, "tensor " + "a" * 100000, "|   - " + " " * 100000 + "|" * 1000]
    log = parse_log(lines)
    assert (log.layers, log.overridden, log.table) == ((), {}, ())
