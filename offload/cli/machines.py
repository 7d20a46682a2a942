"""`offload compare --cards`: what would this model do on other machines?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.cli.app import notify, print_answer, print_json
from offload.cli.asked import ask_here, read_model, speeds_here
from offload.errors import UsageError
from offload.machine import Machine
from offload.render.what_if import machines_to_json, render_machines
from offload.what_if import describe_machines, needs_machine, plan_machines

if TYPE_CHECKING:
    from offload.cli.flags import PlanFlags


def compare_machines(
    model_path: str, flags: PlanFlags, texts: tuple[str, ...], profile: str | None, output: str
) -> int:
    """One row per machine; 1 where the model fits none of them."""
    for flag, value in (("-dev", flags.device), ("-ts", flags.tensor_split)):
        if value is not None:
            raise UsageError(f"{flag} is about the cards of one machine; leave it out with --cards")
    if flags.chooses_ubatch:
        raise UsageError("-ub auto is for one machine; with --cards say a number")
    if flags.chooses_context is not None or "auto" in (flags.type_k, flags.type_v):
        raise UsageError("auto and max are for one machine; with --cards say -c, -ctk and -ctv")
    if needs_machine(texts):
        model, machine, options = ask_here(flags, model_path)
        host_free = flags.host_free_bytes(machine)
    else:
        model, options = read_model(model_path), flags.options()
        machine, host_free = _host_here(flags)
    machines = describe_machines(texts, machine.devices)
    rows = plan_machines(
        machines,
        machine.devices,
        model,
        options,
        host_free_bytes=host_free,
        speeds=speeds_here(flags, machine, profile),
    )
    for notice in machine.warnings:
        notify(notice.text)
    if output == "json":
        print_json(machines_to_json(rows))
    else:
        print_answer(render_machines(rows, markdown=output == "md"))
    return 0 if any(row.answer.plan.feasible for row in rows) else 1


def _host_here(flags: PlanFlags) -> tuple[Machine, int | None]:
    """The host alone, where every card is written out: nothing to ask of those that are here."""
    if flags.gpus is not None or flags.vram is not None or flags.gpu:
        raise UsageError("--cards describes all cards; leave --gpus, --vram and --gpu out")
    if flags.devices_file is not None:
        machine = flags.machine()._replace(devices=())
    else:
        from offload.host import probe_host

        machine = Machine(host=probe_host())
    return machine, flags.host_free_bytes(machine)
