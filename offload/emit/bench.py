"""The llama-bench command line of a launch.

llama-bench has separators of its own (tools/llama-bench/llama-bench.cpp,
b11434): `,` separates whole test variants, so shares are joined by `/`,
devices by `/` and overrides by `;`. It has no slots and no `-c`.
"""

from __future__ import annotations

from offload.emit.launch import Launch
from offload.emit.server import render_shares
from offload.rules import render_overrides


def emit_bench_args(launch: Launch, program: str = "llama-bench") -> tuple[str, ...]:
    """The argv that benches the planned placement, prompt and depth left to the user."""
    argv = [program, "-m", launch.model_path]
    if launch.rpc:
        argv += ["--rpc", launch.rpc]
    if launch.devices:
        argv += ["-dev", "/".join(launch.devices)]
    argv += ["-ngl", str(launch.n_gpu_layers)]
    if launch.split_mode != "layer":
        argv += ["-sm", launch.split_mode, "-mg", str(launch.main_gpu)]
    if launch.tensor_split:
        argv += ["-ts", render_shares(launch.tensor_split, "/")]
    if launch.rules:
        argv += ["-ot", render_overrides(launch.rules, separator=";")]
    if launch.cpu_moe or launch.n_cpu_moe:
        argv += ["-ncmoe", "512" if launch.cpu_moe else str(launch.n_cpu_moe)]
    argv += ["-b", str(launch.n_batch), "-ub", str(launch.n_ubatch)]
    argv += ["-ctk", launch.type_k, "-ctv", launch.type_v]
    if launch.flash_attn is not None:
        argv += ["-fa", "on" if launch.flash_attn else "off"]
    if not launch.offload_kqv:
        argv += ["-nkvo", "1"]
    if not launch.op_offload:
        argv += ["-nopo", "1"]
    if launch.no_host:
        argv += ["--no-host", "1"]
    return (*argv, "-lm", launch.load_mode)
