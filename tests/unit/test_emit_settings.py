"""One launch in the words of old and new builds, by what their help lists."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offload.emit import Launch, emit_bench_args, emit_server_args
from offload.emit.build import NEWEST, Build
from offload.emit.formats import emit_as
from offload.emit.settings import server_settings
from offload.emit.target import Target
from offload.engine.binaries import parse_help
from offload.errors import UsageError
from offload.rules import Rule
from tests.emit_readers import flags_of, read_environment_file

LAUNCH = Launch(
    model_path="/models/m.gguf",
    n_gpu_layers=37,
    tensor_split=(18.0, 19.0),
    rules=(Rule(pattern=r"blk\.5\.ffn_up_exps", buffer_type="CPU"),),
    n_ctx=8192,
    n_batch=2048,
    n_ubatch=512,
    load_mode="none",
    layer_bytes=(1,) * 37,
)
# the flags of a plan as llama-server --help listed them in spring 2025
OLD_HELP = """\
-c,    --ctx-size N                     size of the prompt context (default: 4096)
                                        (env: LLAMA_ARG_CTX_SIZE)
-b,    --batch-size N                   logical maximum batch size (default: 2048)
                                        (env: LLAMA_ARG_BATCH)
-ub,   --ubatch-size N                  physical maximum batch size (default: 512)
                                        (env: LLAMA_ARG_UBATCH)
-fa,   --flash-attn                     enable Flash Attention (default: disabled)
                                        (env: LLAMA_ARG_FLASH_ATTN)
-nkvo, --no-kv-offload                  disable KV offload
                                        (env: LLAMA_ARG_NO_KV_OFFLOAD)
-ctk,  --cache-type-k TYPE              KV cache data type for K
                                        (env: LLAMA_ARG_CACHE_TYPE_K)
-np,   --parallel N                     number of parallel sequences to decode (default: 1)
                                        (env: LLAMA_ARG_N_PARALLEL)
--rpc SERVERS                           comma separated list of RPC servers
                                        (env: LLAMA_ARG_RPC)
--mlock                                 force system to keep model in RAM
                                        (env: LLAMA_ARG_MLOCK)
--no-mmap                               do not memory-map model (slower load)
                                        (env: LLAMA_ARG_NO_MMAP)
-dev,  --device <dev1,dev2,..>          comma-separated list of devices to use for offloading
                                        (env: LLAMA_ARG_DEVICE)
--override-tensor, -ot <tensor name pattern>=<buffer type>,...
                                        override tensor buffer type
-ngl,  --gpu-layers, --n-gpu-layers N   number of layers to store in VRAM
                                        (env: LLAMA_ARG_N_GPU_LAYERS)
-sm,   --split-mode {none,layer,row}    how to split the model across multiple GPUs, one of:
                                        (env: LLAMA_ARG_SPLIT_MODE)
-ts,   --tensor-split N0,N1,N2,...      fraction of the model to offload to each GPU
                                        (env: LLAMA_ARG_TENSOR_SPLIT)
-mg,   --main-gpu INDEX                 the GPU to use for the model (with split-mode = none)
                                        (env: LLAMA_ARG_MAIN_GPU)
-m,    --model FNAME                    model path
                                        (env: LLAMA_ARG_MODEL)
"""
# the same for llama-bench
OLD_BENCH_HELP = """\
test parameters:
  -m, --model <filename>                    (default: models/7B/ggml-model-q4_0.gguf)
  -b, --batch-size <n>                      (default: 2048)
  -ub, --ubatch-size <n>                    (default: 512)
  -ctk, --cache-type-k <t>                  (default: f16)
  -ctv, --cache-type-v <t>                  (default: f16)
  -ngl, --n-gpu-layers <n>                  (default: 99)
  -rpc, --rpc <rpc_servers>                 (default: none)
  -sm, --split-mode <none|layer|row>        (default: layer)
  -mg, --main-gpu <i>                       (default: 0)
  -nkvo, --no-kv-offload <0|1>              (default: 0)
  -fa, --flash-attn <0|1>                   (default: 0)
  -mmp, --mmap <0|1>                        (default: 1)
  -ts, --tensor-split <ts0/ts1/..>          (default: 0)
  -ot --override-tensors <tensor name pattern>=<buffer type>;...
                                            (default: disabled)
"""


def build_of(help_text: str, number: int | None = 5200) -> Build:
    """The build with this help."""
    found = parse_help(help_text)
    return Build(
        flags=frozenset(found.hints),
        hints=found.hints,
        environment=found.environment,
        number=number,
    )


OLD = build_of(OLD_HELP)
OLD_BENCH = build_of(OLD_BENCH_HELP)


def old_args(launch: Launch) -> dict[str, str | None]:
    """Flags and values for the old build; `-fa` is a switch there."""
    argv = [a for a in emit_server_args(launch, build=OLD)[1:] if a != "-fa"]
    return flags_of(argv)


def test_help_is_read_with_values_and_variables() -> None:
    """Hints tell a switch from a flag with a value, `(env: …)` its variable."""
    assert OLD.hints["-fa"] == "" and OLD.hints["-c"] == "N"
    assert OLD.hints["-ot"] == "<tensor name pattern>=<buffer type>,..."
    assert OLD.environment["--no-mmap"] == "LLAMA_ARG_NO_MMAP"
    assert "-ot" not in OLD.environment


def test_old_builds_get_what_they_know() -> None:
    """No -fit and no --load-mode, but --no-mmap; the rest as ever."""
    args = old_args(LAUNCH)
    assert "--no-mmap" in args and "-fit" not in args and "--load-mode" not in args
    assert args["-ot"] == r"blk\.5\.ffn_up_exps=CPU" and args["-ts"] == "18,19"


@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        ("auto", set()),
        ("mmap", set()),
        ("none", {"--no-mmap"}),
        ("mlock", {"--no-mmap", "--mlock"}),
        ("mmap+mlock", {"--mlock"}),
    ],
)
def test_load_modes_in_older_words(mode: str, flags: set[str]) -> None:
    """b11434's modes as the two switches they were."""
    args = old_args(replace(LAUNCH, load_mode=mode))
    assert {flag for flag in ("--no-mmap", "--mlock") if flag in args} == flags


def test_direct_io_needs_a_build_that_has_it() -> None:
    """`dio` has no older word in this build: refused, naming one that would do."""
    with pytest.raises(UsageError, match=r"b5200.*--load-mode.*b11434"):
        old_args(replace(LAUNCH, load_mode="dio"))


@pytest.mark.parametrize(
    ("given", "pattern"),
    [
        ({"cpu_moe": True}, r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"),
        ({"n_cpu_moe": 1}, r"blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"),
    ],
)
def test_expert_flags_become_rules_where_they_are_unknown(
    given: dict[str, int], pattern: str
) -> None:
    """-cmoe and -ncmoe stand for patterns, which every build with -ot understands."""
    launch = replace(LAUNCH, **given)  # type: ignore[arg-type]
    assert old_args(launch)["-ot"] == rf"blk\.5\.ffn_up_exps=CPU,{pattern}"
    assert set(old_args(launch)) & {"-cmoe", "-ncmoe"} == set()
    new = flags_of(emit_server_args(launch)[1:])
    assert new["-ot"] == r"blk\.5\.ffn_up_exps=CPU" and set(new) & {"-cmoe", "-ncmoe"}


def test_flash_attention_was_a_switch() -> None:
    """`on` is the bare flag and `off` is its absence, where the help shows no value."""
    assert "-fa" in emit_server_args(replace(LAUNCH, flash_attn=True), build=OLD)
    argv = emit_server_args(replace(LAUNCH, flash_attn=True), build=OLD)
    assert argv[argv.index("-fa") + 1] not in ("on", "off", "1")
    assert "-fa" not in emit_server_args(replace(LAUNCH, flash_attn=False), build=OLD)
    new = emit_server_args(replace(LAUNCH, flash_attn=False))
    assert new[new.index("-fa") + 1] == "off"


def test_one_cache_for_all_slots() -> None:
    """Until -kvu there was only that; with -kvu alone a split one is the default."""
    assert set(old_args(replace(LAUNCH, kv_unified=True))) & {"-kvu", "-no-kvu"} == set()
    with pytest.raises(UsageError, match="--kv-unified"):
        old_args(replace(LAUNCH, kv_unified=False))
    middle = build_of(OLD_HELP + "-kvu,  --kv-unified                     use single unified KV\n")
    assert "-kvu" in emit_server_args(replace(LAUNCH, kv_unified=True), build=middle)
    split = emit_server_args(replace(LAUNCH, kv_unified=False), build=middle)
    assert not {"-kvu", "-no-kvu"} & set(split)


@pytest.mark.parametrize("n_gpu_layers", [1, 36])
def test_partial_layers_mean_others_to_old_builds(n_gpu_layers: int) -> None:
    """Before about b7500 the output layer came last: refused rather than placed elsewhere."""
    partial = replace(LAUNCH, n_gpu_layers=n_gpu_layers)
    unnumbered = build_of(OLD_HELP, number=None)
    for build in (OLD, unnumbered):
        with pytest.raises(UsageError, match="output layer"):
            emit_server_args(partial, build=build)
    with pytest.raises(UsageError, match="output layer"):
        emit_bench_args(partial, build=OLD_BENCH)
    newer = replace(OLD, number=7600)
    for build in (NEWEST, newer):
        argv = emit_server_args(partial, build=build)
        assert argv[argv.index("-ngl") + 1] == str(n_gpu_layers)


@pytest.mark.parametrize("n_gpu_layers", [0, 37, 99, -2])
def test_all_or_no_layers_mean_the_same_to_all_builds(n_gpu_layers: int) -> None:
    """Only a number in between changed its meaning; and unknown layer counts are let through."""
    assert emit_server_args(replace(LAUNCH, n_gpu_layers=n_gpu_layers), build=OLD)
    assert emit_server_args(replace(LAUNCH, n_gpu_layers=9, layer_bytes=()), build=OLD)


def test_longer_spellings_do_where_a_short_one_is_missing() -> None:
    """Some helps list only the long form."""
    flags = frozenset({"--model", "--n-gpu-layers", "--tensor-split", "--override-tensor"})
    build = Build(flags=flags | {"--ctx-size", "--ubatch-size", "--no-mmap"}, number=9000)
    argv = emit_server_args(LAUNCH, build=build)
    assert argv[1:3] == ("--model", "/models/m.gguf") and "--override-tensor" in argv


def test_variables_are_those_of_the_build() -> None:
    """The help names them; what has none there is refused."""
    launch = replace(LAUNCH, rules=(), offload_kqv=False)
    target = Target(build=OLD)
    variables = read_environment_file(emit_as(launch, "env", target))
    assert variables["LLAMA_ARG_NO_MMAP"] == "1" and variables["LLAMA_ARG_NO_KV_OFFLOAD"] == "1"
    assert "LLAMA_ARG_LOAD_MODE" not in variables
    with pytest.raises(UsageError, match="-ot"):
        emit_as(LAUNCH, "env", target)


def test_old_bench_gets_numbers_and_mmap() -> None:
    """`-fa 1` and `-mmp 0` where the help shows 0|1."""
    argv = emit_bench_args(replace(LAUNCH, flash_attn=True), build=OLD_BENCH)
    flags = flags_of(argv[1:])
    assert flags["-fa"] == "1" and flags["-mmp"] == "0" and "-lm" not in flags
    assert flags_of(emit_bench_args(replace(LAUNCH, flash_attn=True))[1:])["-fa"] == "on"
    auto = emit_bench_args(replace(LAUNCH, load_mode="auto"), build=OLD_BENCH)
    assert flags_of(auto[1:])["-mmp"] == "1"
    with pytest.raises(UsageError, match="--load-mode"):
        emit_bench_args(replace(LAUNCH, load_mode="mlock"), build=OLD_BENCH)
    with pytest.raises(UsageError, match="-dev"):
        emit_bench_args(replace(LAUNCH, devices=("CUDA0",)), build=OLD_BENCH)


def test_bench_writes_expert_flags_as_rules() -> None:
    """llama-bench adds -ncmoe before -ot, so the first match would be another."""
    argv = emit_bench_args(replace(LAUNCH, n_cpu_moe=1))
    assert "-ncmoe" not in argv
    assert flags_of(argv[1:])["-ot"] == (
        r"blk\.5\.ffn_up_exps=CPU;blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
    )


def test_every_setting_has_the_flag_that_the_command_line_has() -> None:
    """The newest build's argv is the settings in order."""
    argv = emit_server_args(LAUNCH)[1:]
    assert argv == tuple(x for s in server_settings(LAUNCH, NEWEST) for x in s.argv)
