"""The command line: parse, call one function, print, exit.

Nobody imports this module. stdout carries only the answer; errors are one line
on stderr and exit code 2, an honest "no" is exit code 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, ParamSpec

import typer

from offload.errors import OffloadError, UsageError

if TYPE_CHECKING:
    from offload.machine import Machine
    from offload.model import Model
    from offload.options import PlanOptions
    from offload.plan import Plan

P = ParamSpec("P")

app = typer.Typer(
    name="offload",
    help="Plan which weights of a mixture-of-experts model go to which card, for llama.cpp.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class Output(StrEnum):
    """What stdout carries."""

    TABLE = "table"
    JSON = "json"
    ARGS = "args"


class StrategyName(StrEnum):
    """Which layers' experts leave the cards."""

    OWN = "own"
    FIRST = "first"
    LAST = "last"
    ALL = "all"
    NONE = "none"


class EmitFormat(StrEnum):
    """Whose command line to print."""

    ARGS = "args"
    BENCH = "bench"


def _answer(function: Callable[P, int | None]) -> Callable[P, None]:
    """Map the function's result and errors to the exit code and one line on stderr."""

    @wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = function(*args, **kwargs)
        except OffloadError as error:
            _complain(str(error))
        except MemoryError:
            _complain("out of memory; free some RAM and try again")
        except OSError as error:
            _complain(f"{error.strerror or error}: {error.filename or 'the answer'}")
        except Exception as error:
            # nobody foresaw it: a traceback and exit code 1 would tell a script "does not fit"
            _complain(f"this is a fault of ours, please report it: {_place(error)}")
        raise typer.Exit(code or 0)

    return command


def _place(error: Exception) -> str:
    """What went wrong and in which line of which module, without paths of this machine."""
    from traceback import extract_tb

    frame = extract_tb(error.__traceback__)[-1]
    module = frame.filename.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{type(error).__name__}: {error} ({module}, line {frame.lineno})"


def _complain(text: str) -> NoReturn:
    """One line on stderr, as far as there is one, and exit code 2."""
    from offload.render.text import printable

    if sys.stderr is not None:
        sys.stderr.write(f"offload: {printable(text)}\n")
    raise typer.Exit(2) from None


def _print(text: str) -> None:
    """Write the answer; a closed pipe (`| head`) is not an error, a closed stdout is."""
    if sys.stdout is None:
        _complain("stdout is closed; there is nowhere to write the answer")
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # nobody reads any more: keep the interpreter from complaining at exit
        sys.stdout = None


def _print_json(value: object) -> None:
    import json

    _print(json.dumps(value, indent=1, ensure_ascii=True))


ModelPath = Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, or any part of one.")]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="What to print.")]
GpusOption = Annotated[int | None, typer.Option("--gpus", help="Number of cards [found].")]
VramOption = Annotated[
    str | None, typer.Option("--vram", metavar="SIZE[,SIZE…]", help="Free memory of each card.")
]
GpuOption = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu", metavar="NAME[:SIZE[:BANDWIDTH[:LINK]]]", help="One card; repeat for each."
    ),
]
RpcOption = Annotated[
    str | None, typer.Option("--rpc", metavar="HOST:PORT,…", help="llama.cpp RPC servers.")
]
DevicesFileOption = Annotated[
    str | None, typer.Option("--devices", metavar="FILE", help="A devices.toml to plan for.")
]
LlamaServerOption = Annotated[
    str | None,
    typer.Option("--llama-server", metavar="PATH", help="Emit only flags this build knows."),
]


def _sizes(text: str, what: str) -> tuple[int, ...]:
    from offload.units import parse_size_bytes

    return tuple(parse_size_bytes(part, what) for part in text.split(","))


def _machine(
    gpus: int | None,
    vram: str | None,
    gpu: list[str] | None,
    rpc: str | None,
    devices_file: str | None,
    llama_server: str | None,
) -> Machine:
    """The machine described by flags or a file, else the one we run on; host memory if probed."""
    from dataclasses import replace

    from offload.device import devices_from_flags
    from offload.machine import Machine

    endpoints = tuple(part for part in (rpc or "").split(",") if part)
    if devices_file is not None:
        from offload.probe import read_machine

        if gpus is not None or vram is not None or gpu:
            raise UsageError("--devices describes all cards; leave --gpus, --vram and --gpu out")
        return read_machine(devices_file)
    if gpus == 0:
        return Machine()
    sizes = None if vram is None else _sizes(vram, "--vram")
    if endpoints and gpus is None and not gpu:
        gpus = len(endpoints)
    counted = gpus is not None or len(sizes or ()) > 1
    if (sizes is not None and counted) or (gpu and all(":" in text for text in gpu)):
        found = Machine()  # all of it is described: nothing to probe
    else:
        from offload.probe import probe_machine

        found = probe_machine(llama_server, endpoints)
    cards = devices_from_flags(gpus, sizes, tuple(gpu or ()), rpc=endpoints, found=found.devices)
    return replace(found, devices=cards)


def _host_free_bytes(
    machine: Machine, host_ram: str | None, devices_file: str | None
) -> int | None:
    """Host memory as given, as described, or as found on this machine."""
    if host_ram is not None:
        from offload.units import parse_size_bytes

        return parse_size_bytes(host_ram, "--host-ram")
    if machine.host.memory_available_bytes is not None or devices_file is not None:
        return machine.host.memory_available_bytes
    from offload.host import probe_host

    return probe_host().memory_available_bytes


def _read_model(path: str) -> Model:
    from offload.model import make_model
    from offload.source import read_header

    return make_model(read_header(path))


@app.command()
@_answer
def plan(
    model: ModelPath,
    gpus: GpusOption = None,
    vram: VramOption = None,
    gpu: GpuOption = None,
    devices: DevicesFileOption = None,
    rpc: RpcOption = None,
    host_ram: Annotated[
        str | None, typer.Option("--host-ram", metavar="SIZE", help="Free host memory [found].")
    ] = None,
    margin: Annotated[
        str, typer.Option("--margin", metavar="SIZE[,SIZE…]", help="To leave free on each card.")
    ] = "1GiB",
    n_ctx: Annotated[
        int | None,
        typer.Option("-c", "--ctx-size", help="Context [training context, at most 32768]."),
    ] = None,
    n_batch: Annotated[
        int, typer.Option("-b", "--batch-size", help="Tokens submitted at once.")
    ] = 2048,
    n_ubatch: Annotated[
        int, typer.Option("-ub", "--ubatch-size", help="Tokens computed at once.")
    ] = 512,
    n_parallel: Annotated[
        int | None, typer.Option("-np", "--parallel", help="Slots [4 over one unified KV cache].")
    ] = None,
    kv_unified: Annotated[
        bool | None, typer.Option("--kv-unified/--no-kv-unified", help="One KV cache for all.")
    ] = None,
    type_k: Annotated[
        str, typer.Option("-ctk", "--cache-type-k", help="Type of the K cache: f16, q8_0, …")
    ] = "f16",
    type_v: Annotated[
        str, typer.Option("-ctv", "--cache-type-v", help="Type of the V cache.")
    ] = "f16",
    flash_attn: Annotated[
        str | None,
        typer.Option("-fa", "--flash-attn", metavar="on|off|auto", help="Flash attention [auto]."),
    ] = None,
    n_gpu_layers: Annotated[
        str | None, typer.Option("-ngl", "--n-gpu-layers", help="Layers on cards [chosen].")
    ] = None,
    tensor_split: Annotated[
        str | None, typer.Option("-ts", "--tensor-split", metavar="N,N…", help="Shares [chosen].")
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "-ot",
            "--override-tensor",
            metavar="REGEX=BUFFER,…",
            help="Your own rules; kept, they go first.",
        ),
    ] = None,
    n_cpu_moe: Annotated[
        int | None,
        typer.Option(
            "-ncmoe", "--n-cpu-moe", help="Experts of the first N layers to the CPU; kept."
        ),
    ] = None,
    cpu_moe: Annotated[
        bool, typer.Option("-cmoe", "--cpu-moe", help="All experts to the CPU; kept.")
    ] = False,
    split_mode: Annotated[
        str, typer.Option("-sm", "--split-mode", help="layer, or none for one card.")
    ] = "layer",
    main_gpu: Annotated[int, typer.Option("-mg", "--main-gpu", help="The card of -sm none.")] = 0,
    device: Annotated[
        str | None, typer.Option("-dev", "--device", metavar="NAME,…", help="Cards, in this order.")
    ] = None,
    load_mode: Annotated[
        str | None,
        typer.Option("-lm", "--load-mode", help="none, mmap, … [none with host experts]."),
    ] = None,
    no_host: Annotated[
        bool, typer.Option("--no-host", help="Host weights repacked, not pinned.")
    ] = False,
    op_offload: Annotated[bool, typer.Option("--op-offload/--no-op-offload")] = True,
    kv_offload: Annotated[bool, typer.Option("--kv-offload/--no-kv-offload")] = True,
    swa_full: Annotated[
        bool, typer.Option("--swa-full", help="Full-size cache for sliding windows.")
    ] = False,
    strategy: Annotated[
        StrategyName, typer.Option(help="Whose experts leave the cards.")
    ] = StrategyName.OWN,
    llama_server: LlamaServerOption = None,
    output: OutputOption = Output.TABLE,
) -> int:
    """Place every tensor so that each card holds its share, and print the command."""
    from offload.options import PlanOptions, Strategy, parse_kv_type
    from offload.plan import make_plan
    from offload.rules import parse_overrides

    options = PlanOptions(
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_parallel=n_parallel,
        kv_unified=kv_unified,
        type_k=parse_kv_type(type_k, "-ctk"),
        type_v=parse_kv_type(type_v, "-ctv"),
        flash_attn=_on_off_auto(flash_attn),
        swa_full=swa_full,
        offload_kqv=kv_offload,
        op_offload=op_offload,
        no_host=no_host,
        n_gpu_layers=_gpu_layers(n_gpu_layers),
        tensor_split=_shares(tensor_split),
        split_mode=split_mode,
        main_gpu=main_gpu,
        override_rules=tuple(r for text in override or () for r in parse_overrides(text)),
        n_cpu_moe=n_cpu_moe,
        cpu_moe=cpu_moe,
        load_mode=load_mode,
        rpc=rpc,
        margin_bytes=_sizes(margin, "--margin"),
        strategy=Strategy(strategy.value),
    )
    loaded = _read_model(model)
    machine = _machine(gpus, vram, gpu, rpc, devices, llama_server)
    machine, options = _choose_devices(machine, options, device, named=bool(gpu or devices))
    host_free = _host_free_bytes(machine, host_ram, devices)
    made = make_plan(loaded, machine.devices, options, host_free_bytes=host_free)
    for notice in machine.warnings:
        sys.stderr.write(f"offload: {notice.text}\n")
    return _print_plan(made, output, llama_server)


def _print_plan(made: Plan, output: Output, llama_server: str | None) -> int:
    from offload.emit import emit_server_args, make_launch, quote_argv
    from offload.render import plan_to_json, render_plan

    known = None
    program = "llama-server"
    if llama_server is not None:
        from offload.engine.binaries import supported_flags

        known, program = supported_flags(Path(llama_server)), llama_server
    argv = emit_server_args(make_launch(made), program, known)
    if output is Output.JSON:
        _print_json(plan_to_json(made) | {"argv": list(argv)})
    elif output is Output.ARGS:
        _print(quote_argv(argv))
    else:
        _print(render_plan(made, argv))
    return 0 if made.feasible else 1


def _choose_devices(
    machine: Machine, options: PlanOptions, names: str | None, *, named: bool
) -> tuple[Machine, PlanOptions]:
    """Apply `-dev`; cards that the user named are emitted as `-dev` so that no other is used."""
    from dataclasses import replace

    cards = machine.devices
    if names == "none":
        return replace(machine, devices=()), replace(options, device_names=("none",))
    if names is not None:
        by_name = {card.name: card for card in cards}
        wanted = names.split(",")
        unknown = [name for name in wanted if name not in by_name]
        if unknown:
            raise UsageError(
                f"-dev {','.join(unknown)}: the cards here are {', '.join(by_name) or 'none'}"
            )
        if len(set(wanted)) != len(wanted):
            raise UsageError(f"-dev {names}: a card is named twice")
        cards = tuple(by_name[name] for name in wanted)
    if names is not None or named:
        options = replace(options, device_names=tuple(card.name for card in cards))
    return replace(machine, devices=cards), options


def _on_off_auto(text: str | None) -> bool | None:
    values = {None: None, "auto": None, "on": True, "1": True, "off": False, "0": False}
    if text not in values:
        raise UsageError(f"-fa {text!r}: on, off or auto")
    return values[text]


def _gpu_layers(text: str | None) -> int | None:
    """`-ngl` as llama.cpp reads it: a count, `all`, or `auto` (not set)."""
    if text is None or text == "auto":
        return None
    if text == "all":
        return -2
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise UsageError(f"-ngl {text!r}: a number, all or auto")
    return int(text)


def _shares(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.replace("/", ",").split(","))
    except ValueError:
        raise UsageError(f"-ts {text!r}: numbers separated by commas, e.g. 3,1") from None


@app.command()
@_answer
def inspect(model: ModelPath, output: OutputOption = Output.TABLE) -> int:
    """Show what a GGUF header says: hyper-parameters, layers, tensor roles, bytes."""
    from offload.render.inspect import inspect_to_json, render_inspect

    if output is Output.ARGS:
        raise UsageError("-o args: a model has no command line; table or json")
    loaded = _read_model(model)
    if output is Output.JSON:
        _print_json(inspect_to_json(loaded))
    else:
        _print(render_inspect(loaded))
    return 0


@app.command()
@_answer
def devices(
    llama_server: Annotated[
        str | None, typer.Option("--llama-server", metavar="PATH", help="Ask this build.")
    ] = None,
    rpc: RpcOption = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="table|json|toml", help="What to print.")
    ] = "table",
) -> int:
    """Show the cards and the host as a plan will see them."""
    from offload.machine import render_machine
    from offload.probe import no_cards_text, probe_machine
    from offload.render.machine import machine_to_json, render_devices

    endpoints = tuple(part for part in (rpc or "").split(",") if part)
    machine = probe_machine(llama_server, endpoints)
    for notice in machine.warnings:
        sys.stderr.write(f"offload: {notice.text}\n")
    if output == "json":
        _print_json(machine_to_json(machine))
    elif output == "toml":
        _print(render_machine(machine))
    elif output == "table":
        _print(render_devices(machine))
        if not machine.devices:
            sys.stderr.write(no_cards_text(llama_server) + "\n")
    else:
        raise UsageError(f"-o {output!r}: table, json or toml")
    return 0


@app.command()
@_answer
def emit(
    plan_file: Annotated[
        str, typer.Argument(metavar="PLAN", help="A plan saved with -o json; - reads stdin.")
    ],
    form: Annotated[
        EmitFormat, typer.Option("--format", help="llama-server or llama-bench arguments.")
    ] = EmitFormat.ARGS,
    llama_server: LlamaServerOption = None,
) -> int:
    """Print the command line of a saved plan for another program."""
    from offload.emit import emit_bench_args, emit_server_args, quote_argv
    from offload.saved import read_launch

    launch = read_launch(plan_file)
    if form is EmitFormat.BENCH:
        _print(quote_argv(emit_bench_args(launch)))
        return 0
    known = None
    if llama_server is not None:
        from offload.engine.binaries import supported_flags

        known = supported_flags(Path(llama_server))
    _print(quote_argv(emit_server_args(launch, llama_server or "llama-server", known)))
    return 0


def main() -> None:
    """Entry point of the `offload` console script."""
    try:
        app()
    except KeyboardInterrupt:
        sys.stderr.write("offload: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
