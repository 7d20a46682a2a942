"""Which plan do the typed flags ask for, on which machine, and how fast is that machine?

The edges meet here: probes, saved plans, profiles and what earlier servers recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from offload.errors import UsageError

if TYPE_CHECKING:
    from offload.cli.flags import PlanFlags
    from offload.device import Device
    from offload.machine import Machine
    from offload.memory import Companion
    from offload.model import Model
    from offload.options import PlanOptions
    from offload.plan import Plan
    from offload.render.request_json import Request
    from offload.speeds import Measured, Speeds


def plan_here(
    flags: PlanFlags, model_path: str, llama_build: int | None = None, profile: str | None = None
) -> tuple[Plan, Machine]:
    """The plan that the flags ask for, and the machine it is for.

    `llama_build` counts where no flag says which build will run it, `profile` names measured
    speeds. What a probe could not find out is told on stderr.
    """
    from offload.cli.app import notify
    from offload.plan import make_plan

    model, machine, options = ask_here(flags, model_path, llama_build)
    speeds = speeds_here(flags, machine, profile)
    host_free = flags.host_free_bytes(machine)

    def made_with(options: PlanOptions, host_free: int | None) -> Plan:
        if not flags.chooses_anything:
            return make_plan(
                model, machine.devices, options, host_free_bytes=host_free, speeds=speeds
            )
        from offload.free_settings import UBATCHES, best_settings

        return best_settings(
            model,
            machine.devices,
            options,
            speeds=speeds,
            host_free_bytes=host_free,
            ubatches=UBATCHES if flags.chooses_ubatch else (),
            may_reorder=flags.chooses_settings and flags.device is None,
            may_switch=flags.chooses_settings,
            context=flags.chooses_context,
            free_k=flags.type_k == "auto",
            free_v=flags.type_v == "auto",
        )

    if options.draft_path is None and options.mmproj_path is None:
        made = made_with(options, host_free)
    else:
        made = _with_companions(made_with, model, machine, options, host_free)
    for notice in machine.warnings:
        notify(notice.text)
    return made, machine


def ask_here(
    flags: PlanFlags, model_path: str, llama_build: int | None = None
) -> tuple[Model, Machine, PlanOptions]:
    """The model, the machine and the options that the flags mean together."""
    options = flags.options()
    if options.llama_build is None:
        options = replace(options, llama_build=llama_build)
    model = read_model(model_path)
    machine = flags.machine()
    machine, options = _choose_devices(
        machine, options, flags.device, named=bool(flags.gpu or flags.devices_file)
    )
    if flags.margin is None:
        options = _with_growth(options, model, machine)
    return model, machine, _with_reserve(options, machine, flags.reserved_bytes())


def speeds_here(flags: PlanFlags, machine: Machine, profile: str | None = None) -> Speeds:
    """What the fastest placement is chosen by: the turn, and what is known of the machine."""
    from offload.speeds import Speeds
    from offload.turn import Turn, parse_turn

    return Speeds(
        turn=Turn() if flags.turn is None else parse_turn(flags.turn),
        host=machine.host,
        measured=measured_speeds(machine.devices, profile),
        may_drop_cards=flags.device is None,
    )


def plan_or_saved(
    flags: PlanFlags, path: str, llama_build: int | None = None
) -> tuple[Plan, Request]:
    """The plan saved at `path`, or one for the model there, and what asked for it.

    Raises UsageError where flags contradict a saved plan.
    """
    from offload.render.request_json import request_of_plan
    from offload.saved import is_saved_plan, plan_of_saved, read_saved

    if not is_saved_plan(path):
        plan = plan_here(flags, path, llama_build)[0]
        return plan, request_of_plan(plan)
    ours = {"llama_server"}
    set_here = [
        item.name.replace("_", "-")
        for item in fields(flags)
        if item.name not in ours and getattr(flags, item.name) != item.default
    ]
    if set_here:
        raise UsageError(
            f"{path} is a saved plan, so --{set_here[0]} has nothing to say;"
            " give the model instead to plan again"
        )
    saved = read_saved(path)
    return plan_of_saved(saved), saved.request


def _with_reserve(options: PlanOptions, machine: Machine, reserved: dict[str, int]) -> PlanOptions:
    """Margins raised by what another program needs on each card."""
    names = [device.name for device in machine.devices]
    unknown = [name for name in reserved if name not in names]
    if unknown:
        raise UsageError(f"--reserve {unknown[0]}: the cards here are {', '.join(names) or 'none'}")
    if not reserved or options.n_gpu_layers == 0:
        return options
    margins = options.margin_bytes
    if options.split_mode == "none":
        names = names[options.main_gpu : options.main_gpu + 1]
    if len(margins) == 1:
        margins *= len(names)
    if len(margins) != len(names):
        return options  # the plan says how many margins there must be
    return replace(
        options,
        margin_bytes=tuple(
            margin + reserved.get(name, 0) for margin, name in zip(margins, names, strict=True)
        ),
    )


def _with_companions(
    made_with: Callable[[PlanOptions, int | None], Plan],
    model: Model,
    machine: Machine,
    options: PlanOptions,
    host_free: int | None,
) -> Plan:
    """The plan beside a draft model and a projector, which are charged before the spread.

    A draft on several cards is split as the main model is, and its compute follows `-ub`:
    so it is planned again until what was charged is enough.
    """
    from offload.companions import (
        draft_cards,
        draft_memory,
        mmproj_card,
        mmproj_memory,
        plan_shares,
    )
    from offload.plan import resolve_context
    from offload.source import read_header

    cards = draft_cards(machine.devices, options.draft_device)
    card = mmproj_card(machine.devices, options.mmproj_device)
    draft = None if options.draft_path is None else read_model(options.draft_path)
    fixed: tuple[Companion, ...] = ()
    if options.mmproj_path is not None:
        fixed = (mmproj_memory(read_header(options.mmproj_path), card),)
        options = replace(options, mmproj_device="none" if card is None else card.name)
    if draft is not None:
        options = replace(options, draft_device=",".join(c.name for c in cards) or "none")
    made: Plan | None = None
    context, used = resolve_context(model, options), options
    charged, charged_host = dict.fromkeys((d.name for d in machine.devices), 0), 0
    while True:
        shares = (options.tensor_split or ()) if made is None else plan_shares(made)
        loaded = [*fixed]
        if draft is not None:
            loaded.append(draft_memory(draft, cards, used, context, shares))
        taken = {
            name: sum(one.cards[name].total_bytes for one in loaded if name in one.cards)
            for name in charged
        }
        host = sum(one.host.total_bytes for one in loaded)
        is_enough = host <= charged_host and all(n <= charged[name] for name, n in taken.items())
        if made is not None and is_enough:
            return replace(made, companions=tuple(loaded))
        # only ever more, so that it comes to an end
        charged = {name: max(n, charged[name]) for name, n in taken.items()}
        charged_host = max(host, charged_host)
        left = None if host_free is None else max(host_free - charged_host, 1)
        made = made_with(_with_reserve(options, machine, charged), left)
        context, used = made.context, made.options


def _with_growth(options: PlanOptions, model: Model, machine: Machine) -> PlanOptions:
    """Margins raised to what `serve --canary` saw of this model on these very cards."""
    if not machine.devices or not any(card.description for card in machine.devices):
        return options  # cards described by hand were never seen
    from offload.cli.app import notify
    from offload.engine.serving.growth import margins_with_growth, recorded_growth

    growth = recorded_growth(model, machine.devices)
    default = options.margin_bytes * len(machine.devices)
    margins = margins_with_growth(default, machine.devices, growth)
    if margins == default:
        return options
    notify("margins are raised to what a long prompt took here before; --margin sets them")
    return replace(options, margin_bytes=margins)


def read_model(path: str) -> Model:
    """The model whose header stands at `path`."""
    from offload.model import make_model
    from offload.source import read_header

    return make_model(read_header(path))


def measured_speeds(devices: Sequence[Device], profile: str | None) -> Measured | None:
    """What `--profile` says, else the newest profile of this machine; None for neither."""
    if profile is None and not any(device.description for device in devices):
        return None  # cards described by hand are no machine's that was measured
    import os
    from pathlib import Path

    from tuner.extrapolate import measured_for
    from tuner.profile import newest_profile, profiles_dir, read_profile

    if profile is not None:
        return measured_for(read_profile(Path(profile)), devices)
    newest = newest_profile(devices, profiles_dir(os.environ))
    return None if newest is None else measured_for(newest, devices)


def _choose_devices(
    machine: Machine, options: PlanOptions, names: str | None, *, named: bool
) -> tuple[Machine, PlanOptions]:
    """Apply `-dev`; cards that the user named are emitted as `-dev` so that no other is used."""
    cards = machine.devices
    if names == "none":
        return machine._replace(devices=()), replace(options, device_names=("none",))
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
        from offload.device import rpc_servers

        servers = options.rpc or ",".join(rpc_servers(machine.devices)) or None
        options = replace(options, device_names=tuple(card.name for card in cards), rpc=servers)
    return machine._replace(devices=cards), options
