"""`offload devices`: which cards and how much memory would a plan see here?"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from offload.cli.app import command, notify, print_answer, print_json
from offload.cli.flags import LlamaServerOption, RpcOption


class DevicesOutput(StrEnum):
    """What stdout carries."""

    TABLE = "table"
    JSON = "json"
    TOML = "toml"


@command()
def devices(
    llama_server: LlamaServerOption = None,
    rpc: RpcOption = None,
    output: Annotated[
        DevicesOutput, typer.Option("-o", "--output", help="What to print.")
    ] = DevicesOutput.TABLE,
) -> int:
    """Show the cards and the host as a plan will see them."""
    from offload.machine import render_machine
    from offload.probe import no_cards_text, probe_machine
    from offload.render.machine import machine_to_json, render_devices

    endpoints = tuple(part for part in (rpc or "").split(",") if part)
    machine = probe_machine(llama_server, endpoints)
    for notice in machine.warnings:
        notify(notice.text)
    if output is DevicesOutput.JSON:
        print_json(machine_to_json(machine))
    elif output is DevicesOutput.TOML:
        print_answer(render_machine(machine))
    else:
        print_answer(render_devices(machine))
        if not machine.devices:
            sys.stderr.write(no_cards_text(llama_server) + "\n")
    return 0
