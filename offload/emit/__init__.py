"""Plans as command lines and configuration files of other programs.

What every plan needs is here; the other formats stand in formats.py.
"""

from offload.emit.bench import emit_bench_args
from offload.emit.launch import Launch, make_launch
from offload.emit.server import emit_server_args, quote_argv, quote_for_terminal

__all__ = [
    "Launch",
    "emit_bench_args",
    "emit_server_args",
    "make_launch",
    "quote_argv",
    "quote_for_terminal",
]
