"""What do all commands share: the program, its exit codes, what reaches stdout and stderr?

stdout carries only the answer; errors are one line on stderr and exit code 2,
an honest "no" is exit code 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, Final, NoReturn, get_type_hints

import typer

from offload.errors import OffloadError

app: Final = typer.Typer(
    name="offload",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def offload(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version, alone before any command.")
    ] = False,
) -> None:
    """Plan which weights of a mixture-of-experts model go to which card, for llama.cpp."""


def run() -> NoReturn:
    """Answer what was typed and end; what cannot be understood is one line on stderr."""
    try:
        # the parser's own report takes four lines, of which the last says what is wrong
        code = app(prog_name="offload", standalone_mode=False)
    except Exception as error:
        # its class has another home in every typer; what it must be able to do has not
        if not hasattr(error, "format_message"):
            raise
        _complain_of_usage(error)
        code = 2
    sys.exit(code if isinstance(code, int) else 0)


def _complain_of_usage(error: Any) -> None:
    from offload.cli import COMMANDS

    context, message = getattr(error, "ctx", None), error.format_message()
    if context is not None and message == context.get_help():
        sys.stderr.write(f"{message}\n")  # nothing at all was typed
        return
    typed = [word for word in sys.argv[1:2] if word in COMMANDS]
    path = " ".join(("offload", *typed)) if context is None else context.command_path
    notify(f"{' '.join(message.split()).rstrip('.')}; see {path} --help")


def command(*, pass_on: bool = False) -> Callable[[Callable[..., int | None]], Callable[..., None]]:
    """Make a function a command: flags from its signature, exit code from its result.

    A parameter whose type is a dataclass stands for one flag per field of it.
    With `pass_on`, what follows `--` is left for another program (`ctx.args` of Typer).
    """
    settings = {"ignore_unknown_options": True, "allow_extra_args": True} if pass_on else {}

    def register(function: Callable[..., int | None]) -> Callable[..., None]:
        answering = _answer(_with_spread_flags(function))
        app.command(context_settings=settings)(answering)
        return answering

    return register


def _with_spread_flags(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """Replace each dataclass parameter by one keyword parameter per field."""
    hints = get_type_hints(function, include_extras=True)
    spread: dict[str, type] = {}
    parameters: list[Parameter] = []
    for name, parameter in signature(function).parameters.items():
        if hasattr(hints[name], "__dataclass_fields__"):
            spread[name] = hints[name]
            parameters += _parameters_of(hints[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    @wraps(function)
    def spreading(**given: Any) -> int | None:
        for name, flags in spread.items():
            given[name] = flags(**{item.name: given.pop(item.name) for item in fields(flags)})
        return function(**given)

    parameters = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in parameters]
    spreading.__signature__ = signature(function).replace(parameters=parameters)  # type: ignore[attr-defined]
    spreading.__annotations__ = {p.name: p.annotation for p in parameters}
    return spreading


def _parameters_of(flags: type) -> list[Parameter]:
    hints = get_type_hints(flags, include_extras=True)
    return [
        Parameter(
            item.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if item.default is MISSING else item.default,
            annotation=hints[item.name],
        )
        for item in fields(flags)
    ]


def _answer(function: Callable[..., int | None]) -> Callable[..., None]:
    """Map the function's result and errors to the exit code and one line on stderr."""

    @wraps(function)
    def answering(*args: Any, **kwargs: Any) -> None:
        try:
            code = function(*args, **kwargs)
        except typer.Exit:
            raise
        except KeyboardInterrupt:
            notify("interrupted")
            raise typer.Exit(130) from None
        except OffloadError as error:
            complain(str(error))
        except MemoryError:
            complain("out of memory; free some RAM and try again")
        except OSError as error:
            complain(f"{error.strerror or error}: {error.filename or 'the answer'}")
        except Exception as error:
            # nobody foresaw it: a traceback and exit code 1 would tell a script "does not fit"
            complain(f"this is a fault of ours, please report it: {_place(error)}")
        raise typer.Exit(code or 0)

    return answering


def _place(error: Exception) -> str:
    """What went wrong and in which line of which module, without paths of this machine."""
    from traceback import extract_tb

    frame = extract_tb(error.__traceback__)[-1]
    module = frame.filename.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{type(error).__name__}: {error} ({module}, line {frame.lineno})"


def notify(text: str) -> None:
    """One line on stderr, as far as there is one."""
    from offload.render.text import printable

    if sys.stderr is not None:
        sys.stderr.write(f"offload: {printable(text)}\n")


def complain(text: str) -> NoReturn:
    """One line on stderr and exit code 2."""
    notify(text)
    raise typer.Exit(2) from None


def print_answer(text: str) -> None:
    """Write the answer; a closed pipe (`| head`) is not an error, a closed stdout is."""
    if sys.stdout is None:
        complain("stdout is closed; there is nowhere to write the answer")
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # nobody reads any more: keep the interpreter from complaining at exit
        sys.stdout = None


def print_json(value: object) -> None:
    """Write the answer as JSON."""
    import json

    print_answer(json.dumps(value, indent=1, ensure_ascii=True))
