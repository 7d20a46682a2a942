"""Which flags describe a machine and a plan, and what do they mean together?

llama.cpp's own flags keep llama.cpp's spelling and meaning (common/arg.cpp, b11434).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from offload.errors import LlamaCppError, UsageError

if TYPE_CHECKING:
    from offload.machine import Machine
    from offload.options import PlanOptions

ModelPath = Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, or any part of one.")]
PlanOrModel = Annotated[
    str,
    typer.Argument(
        metavar="PLAN|MODEL", help="A plan saved with -o json (- reads stdin), or a GGUF file."
    ),
]
RpcOption = Annotated[
    str | None, typer.Option("--rpc", metavar="HOST:PORT,…", help="llama.cpp RPC servers.")
]


def located(llama_server: str | None) -> str | None:
    """The program meant by `--llama-server`: a path, a folder of programs, or a name on PATH.

    With a slash in it, so that nothing on PATH is run in its place; what is not there stays
    as it was typed, for whoever wants to run it to complain of.
    """
    import os
    import shutil

    if not llama_server:
        return llama_server
    if os.path.isdir(llama_server):
        inside = os.path.join(llama_server, "llama-server")
        return inside if os.path.isfile(inside) else llama_server
    if os.path.dirname(llama_server):
        return llama_server
    here = os.path.join(os.curdir, llama_server)
    return here if os.path.isfile(here) else shutil.which(llama_server) or llama_server


LlamaServerOption = Annotated[
    str | None,
    typer.Option(
        "--llama-server",
        metavar="PATH",
        help="The llama-server to ask and to run, or the folder of its build [on PATH].",
        callback=located,
    ),
]

ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="FILE", help="Speeds from offload bench [newest of this machine]."
    ),
]


class Output(StrEnum):
    """What stdout carries."""

    TABLE = "table"
    JSON = "json"
    ARGS = "args"


class Report(StrEnum):
    """What stdout carries where there is no command line to print."""

    TABLE = "table"
    JSON = "json"


class StrategyName(StrEnum):
    """Which layers' experts leave the cards."""

    OWN = "own"
    EVEN = "even"
    FIRST = "first"
    LAST = "last"
    ALL = "all"
    NONE = "none"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="What to print.")]
ReportOption = Annotated[Report, typer.Option("-o", "--output", help="What to print.")]


# nobody compares or prints flags, and each such method takes a while to make at every start
@dataclass(kw_only=True, eq=False, repr=False)
class MachineFlags:
    """The cards and the host, described or found."""

    gpus: Annotated[int | None, typer.Option("--gpus", help="Number of cards [found].")] = None
    vram: Annotated[
        str | None, typer.Option("--vram", metavar="SIZE[,SIZE…]", help="Free memory of each card.")
    ] = None
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu", metavar="NAME[:SIZE[:BANDWIDTH[:LINK]]]", help="One card; repeat for each."
        ),
    ] = None
    devices_file: Annotated[
        str | None, typer.Option("--devices", metavar="FILE", help="A devices.toml to plan for.")
    ] = None
    rpc: RpcOption = None
    host_ram: Annotated[
        str | None, typer.Option("--host-ram", metavar="SIZE", help="Free host memory [found].")
    ] = None
    llama_server: LlamaServerOption = None

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The RPC servers, one `host:port` each."""
        return tuple(part for part in (self.rpc or "").split(",") if part)

    def machine(self) -> Machine:
        """The machine described by flags or a file, else the one we run on."""
        from offload.device import devices_from_flags
        from offload.machine import Machine

        gpus = self.gpus
        if self.devices_file is not None:
            from offload.probe import read_machine

            if gpus is not None or self.vram is not None or self.gpu:
                raise UsageError(
                    "--devices describes all cards; leave --gpus, --vram and --gpu out"
                )
            return read_machine(self.devices_file)
        if gpus == 0:
            return Machine()
        sizes = None if self.vram is None else parse_sizes(self.vram, "--vram")
        if self.endpoints and gpus is None and not self.gpu:
            gpus = len(self.endpoints)
        counted = gpus is not None or len(sizes or ()) > 1
        sized = bool(self.gpu) and all(":" in text for text in self.gpu or ())
        if (sizes is not None and counted) or sized:
            found = Machine()  # all of it is described: nothing to probe
        else:
            from offload.probe import probe_machine

            found = probe_machine(self.llama_server, self.endpoints)
        cards = devices_from_flags(
            gpus, sizes, tuple(self.gpu or ()), rpc=self.endpoints, found=found.devices
        )
        return found._replace(devices=cards)

    def host_free_bytes(self, machine: Machine) -> int | None:
        """Host memory as given, as described, or as found on this machine."""
        if self.host_ram is not None:
            from offload.units import parse_size_bytes

            return parse_size_bytes(self.host_ram, "--host-ram")
        if machine.host.memory_available_bytes is not None or self.devices_file is not None:
            return machine.host.memory_available_bytes
        from offload.host import probe_host

        return probe_host().memory_available_bytes


@dataclass(kw_only=True, eq=False, repr=False)
class PlanFlags(MachineFlags):
    """Everything a plan can be told."""

    margin: Annotated[
        str | None,
        typer.Option(
            "--margin",
            metavar="SIZE[,SIZE…]",
            help="To leave free on each card [1GiB, or what serve --canary saw].",
        ),
    ] = None
    reserve: Annotated[
        list[str] | None,
        typer.Option(
            "--reserve",
            metavar="CARD=SIZE",
            help="For another program on that card, beyond the margin; repeat for each.",
        ),
    ] = None
    turn: Annotated[
        str | None,
        typer.Option(
            "--turn",
            metavar="prompt=N,generate=N,depth=N",
            help="Whose seconds count [prompt=2048,generate=512, at half the context].",
        ),
    ] = None
    settings: Annotated[
        str | None,
        typer.Option(
            "--settings",
            metavar="auto",
            help="auto: choose the order of cards, --no-op-offload and --no-host too.",
        ),
    ] = None
    n_ctx: Annotated[
        str | None,
        typer.Option(
            "-c",
            "--ctx-size",
            help="Context [training context, at most 32768]; auto: the longest that costs no"
            " time, max: the longest that fits.",
        ),
    ] = None
    n_batch: Annotated[
        int, typer.Option("-b", "--batch-size", help="Tokens submitted at once.")
    ] = 2048
    n_ubatch: Annotated[
        str,
        typer.Option(
            "-ub", "--ubatch-size", help="Tokens computed at once; auto: what is fastest."
        ),
    ] = "512"
    n_parallel: Annotated[
        int | None, typer.Option("-np", "--parallel", help="Slots [4 over one unified KV cache].")
    ] = None
    kv_unified: Annotated[
        bool | None, typer.Option("--kv-unified/--no-kv-unified", help="One KV cache for all.")
    ] = None
    type_k: Annotated[
        str, typer.Option("-ctk", "--cache-type-k", help="Type of the K cache: f16, q8_0, …, auto.")
    ] = "f16"
    type_v: Annotated[str, typer.Option("-ctv", "--cache-type-v", help="Type of the V cache.")] = (
        "f16"
    )
    flash_attn: Annotated[
        str | None,
        typer.Option("-fa", "--flash-attn", metavar="on|off|auto", help="Flash attention [auto]."),
    ] = None
    n_gpu_layers: Annotated[
        str | None, typer.Option("-ngl", "--n-gpu-layers", help="Layers on cards [chosen].")
    ] = None
    tensor_split: Annotated[
        str | None, typer.Option("-ts", "--tensor-split", metavar="N,N…", help="Shares [chosen].")
    ] = None
    override: Annotated[
        list[str] | None,
        typer.Option(
            "-ot",
            "--override-tensor",
            metavar="REGEX=BUFFER,…",
            help="Your own rules; kept, they go first.",
        ),
    ] = None
    n_cpu_moe: Annotated[
        int | None,
        typer.Option(
            "-ncmoe", "--n-cpu-moe", help="Experts of the first N layers to the CPU; kept."
        ),
    ] = None
    cpu_moe: Annotated[
        bool, typer.Option("-cmoe", "--cpu-moe", help="All experts to the CPU; kept.")
    ] = False
    split_mode: Annotated[
        str, typer.Option("-sm", "--split-mode", help="layer, or none for one card.")
    ] = "layer"
    main_gpu: Annotated[int, typer.Option("-mg", "--main-gpu", help="The card of -sm none.")] = 0
    device: Annotated[
        str | None, typer.Option("-dev", "--device", metavar="NAME,…", help="Cards, in this order.")
    ] = None
    load_mode: Annotated[
        str | None,
        typer.Option("-lm", "--load-mode", help="none, mmap, … [none with host experts]."),
    ] = None
    no_host: Annotated[
        bool, typer.Option("--no-host", help="Host weights repacked, not pinned.")
    ] = False
    op_offload: Annotated[bool, typer.Option("--op-offload/--no-op-offload")] = True
    kv_offload: Annotated[bool, typer.Option("--kv-offload/--no-kv-offload")] = True
    swa_full: Annotated[
        bool, typer.Option("--swa-full", help="Full-size cache for sliding windows.")
    ] = False
    draft: Annotated[
        str | None,
        typer.Option(
            "-md", "--model-draft", "--draft", metavar="FILE", help="A draft model to load too."
        ),
    ] = None
    draft_device: Annotated[
        str | None,
        typer.Option(
            "-devd", "--device-draft", metavar="NAME,…", help="Its cards, or none [the freest]."
        ),
    ] = None
    draft_n_gpu_layers: Annotated[
        str | None, typer.Option("-ngld", "--gpu-layers-draft", help="Its layers on cards [all].")
    ] = None
    draft_type_k: Annotated[
        str, typer.Option("-ctkd", "--cache-type-k-draft", help="Type of its K cache.")
    ] = "f16"
    draft_type_v: Annotated[
        str, typer.Option("-ctvd", "--cache-type-v-draft", help="Type of its V cache.")
    ] = "f16"
    mmproj: Annotated[
        str | None,
        typer.Option("-mm", "--mmproj", metavar="FILE", help="A multimodal projector to load too."),
    ] = None
    mmproj_device: Annotated[
        str | None,
        typer.Option(
            "-mmdev", "--mmproj-device", metavar="NAME", help="Its card, or none [the first]."
        ),
    ] = None
    mmproj_offload: Annotated[bool, typer.Option("--mmproj-offload/--no-mmproj-offload")] = True
    strategy: Annotated[
        StrategyName,
        typer.Option(help="Whose experts leave the cards: own is the fastest, even fills evenly."),
    ] = StrategyName.OWN

    def options(self) -> PlanOptions:
        """The flags as values; UsageError names the flag that cannot be meant."""
        from offload.options import PlanOptions, Strategy, parse_kv_type
        from offload.rules import parse_overrides

        self._check_companions()
        return PlanOptions(
            n_ctx=self._context(),
            n_batch=self.n_batch,
            n_ubatch=self._ubatch(),
            n_parallel=self.n_parallel,
            kv_unified=self.kv_unified,
            type_k=parse_kv_type(_f16_if_auto(self.type_k), "-ctk"),
            type_v=parse_kv_type(_f16_if_auto(self.type_v), "-ctv"),
            flash_attn=_on_off_auto(self.flash_attn),
            swa_full=self.swa_full,
            offload_kqv=self.kv_offload,
            op_offload=self.op_offload,
            no_host=self.no_host,
            n_gpu_layers=_gpu_layers(self.n_gpu_layers),
            tensor_split=_shares(self.tensor_split),
            split_mode=self.split_mode,
            main_gpu=self.main_gpu,
            override_rules=tuple(r for text in self.override or () for r in parse_overrides(text)),
            n_cpu_moe=self.n_cpu_moe,
            cpu_moe=self.cpu_moe,
            load_mode=self.load_mode,
            rpc=self.rpc,
            llama_build=self._build(),
            draft_path=self.draft,
            draft_device=self.draft_device,
            draft_n_gpu_layers=_gpu_layers(self.draft_n_gpu_layers, "-ngld"),
            draft_type_k=parse_kv_type(self.draft_type_k, "-ctkd"),
            draft_type_v=parse_kv_type(self.draft_type_v, "-ctvd"),
            mmproj_path=self.mmproj,
            mmproj_device=self.mmproj_device if self.mmproj_offload else "none",
            margin_bytes=parse_sizes("1GiB" if self.margin is None else self.margin, "--margin"),
            strategy=Strategy(self.strategy.value),
        )

    @property
    def chooses_ubatch(self) -> bool:
        """Whether `-ub` is for us to choose."""
        return self.n_ubatch == "auto"

    @property
    def chooses_settings(self) -> bool:
        """Whether the order of cards and switches are for us to choose."""
        if self.settings not in (None, "auto"):
            raise UsageError(f"--settings {self.settings!r}: auto is all there is")
        return self.settings == "auto"

    @property
    def chooses_context(self) -> str | None:
        """`auto` or `max` where `-c` is for us to choose."""
        return self.n_ctx if self.n_ctx in ("auto", "max") else None

    @property
    def chooses_anything(self) -> bool:
        """Whether any setting is for us to choose."""
        return (
            self.chooses_ubatch
            or self.chooses_settings
            or self.chooses_context is not None
            or "auto" in (self.type_k, self.type_v)
        )

    def _context(self) -> int | None:
        text = self.n_ctx
        if text is None or self.chooses_context is not None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 11):
            raise UsageError(f"-c {text!r}: a number of tokens, auto or max")
        return int(text)

    def _ubatch(self) -> int:
        text = self.n_ubatch
        if self.chooses_ubatch:
            return 512
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise UsageError(f"-ub {text!r}: a number of tokens, or auto")
        return int(text)

    def _check_companions(self) -> None:
        """Refuse flags of a file that is not given."""
        if self.draft is None:
            for flag, value in (("-devd", self.draft_device), ("-ngld", self.draft_n_gpu_layers)):
                if value is not None:
                    raise UsageError(f"{flag} {value}: of which draft model? add --draft FILE")
        if self.mmproj is None and (self.mmproj_device is not None or not self.mmproj_offload):
            raise UsageError("-mmdev and --no-mmproj-offload need --mmproj FILE")

    def reserved_bytes(self) -> dict[str, int]:
        """Bytes that `--reserve` keeps, by card; UsageError for another form."""
        from offload.units import parse_size_bytes

        found: dict[str, int] = {}
        for text in self.reserve or ():
            name, equals, size = text.partition("=")
            if not (name and equals):
                raise UsageError(f"--reserve {text!r} is not CARD=SIZE, e.g. CUDA2=8GiB")
            found[name] = found.get(name, 0) + parse_size_bytes(size, f"--reserve {name}")
        return found

    def _build(self) -> int | None:
        """The build of `--llama-server`; None where none is named or it has no number."""
        if self.llama_server is None:
            return None
        from pathlib import Path

        from offload.engine.binaries import build_number, find_binary

        program = find_binary("llama-server", Path(self.llama_server))
        try:
            return None if program is None else build_number(program)
        except LlamaCppError:
            return None  # who needs the program says what is wrong with it


def parse_sizes(text: str, what: str) -> tuple[int, ...]:
    """`24GiB,12GiB` as bytes; `what` is the flag, for the error."""
    from offload.units import parse_size_bytes

    return tuple(parse_size_bytes(part, what) for part in text.split(","))


def _f16_if_auto(text: str) -> str:
    return "f16" if text == "auto" else text


def _on_off_auto(text: str | None) -> bool | None:
    values = {None: None, "auto": None, "on": True, "1": True, "off": False, "0": False}
    if text not in values:
        raise UsageError(f"-fa {text!r}: on, off or auto")
    return values[text]


def _gpu_layers(text: str | None, flag: str = "-ngl") -> int | None:
    """`-ngl` as llama.cpp reads it: a count, `all`, or `auto` (not set)."""
    if text is None or text == "auto":
        return None
    if text == "all":
        return -2
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise UsageError(f"{flag} {text!r}: a number, all or auto")
    return int(text)


def _shares(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.replace("/", ",").split(","))
    except ValueError:
        raise UsageError(f"-ts {text!r}: numbers separated by commas, e.g. 3,1") from None
