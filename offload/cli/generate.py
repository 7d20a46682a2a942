"""`offload generate`: what does the model say, placed as planned?"""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from offload.cli.app import command, notify, print_answer, print_json
from offload.cli.asked import plan_or_saved
from offload.cli.flags import PlanFlags, PlanOrModel, Report, ReportOption

if TYPE_CHECKING:
    from offload.engine.session import LoadProgress, Session
    from offload.engine.stream import Stream
    from offload.plan import Plan

_EXIT_INTERRUPTED = 130


@command()
def generate(
    target: PlanOrModel,
    flags: PlanFlags,
    prompt: Annotated[str, typer.Option("-p", "--prompt", help="The text to go on from.")],
    n_predict: Annotated[
        int, typer.Option("-n", "--predict", help="Tokens at most; -1: until it ends.")
    ] = 128,
    temperature: Annotated[
        float, typer.Option("--temp", help="0 takes the likeliest token.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", help="With --temp.")] = 40,
    top_p: Annotated[float, typer.Option("--top-p", help="With --temp.")] = 0.95,
    min_p: Annotated[float, typer.Option("--min-p", help="With --temp.")] = 0.05,
    seed: Annotated[
        int | None, typer.Option("-s", "--seed", help="For the same answer again [random].")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="Ends it; repeatable.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put -p into the model's own chat template.")
    ] = False,
    virtual: Annotated[
        bool, typer.Option("--virtual", help="Play the cards on this machine's CPU.")
    ] = False,
    n_threads: Annotated[
        int | None, typer.Option("-t", "--threads", help="Of the host's part [all cores].")
    ] = None,
    streaming: Annotated[
        bool, typer.Option("--stream/--no-stream", help="Print the text while it comes.")
    ] = True,
    output: ReportOption = Report.TABLE,
) -> int:
    """Load a plan with llama-cpp-python and go on from a prompt; timings go to stderr."""
    from offload.engine.library_build import library_build
    from offload.engine.stream import Sampling
    from offload.engine.summary import run_to_json

    plan, _ = plan_or_saved(flags, target, library_build())
    if not plan.feasible:
        notify("this plan does not fit; offload plan says by how much and what would help")
        return 1
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a model may write what no locale has
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    is_text = output is Report.TABLE
    with _load(plan, virtual=virtual, n_threads=n_threads) as session:
        if chat:
            prompt = session.chat_prompt([{"role": "user", "content": prompt}])
        stream = session.stream(prompt, n_predict=n_predict, sampling=sampling, stop=stop or ())
        is_whole = _follow(stream, is_shown=is_text and streaming)
        if not is_text:
            print_json(run_to_json(session, stream.result))
        elif not streaming:
            print_answer(_harmless(stream.result.text))
        _tell(session, stream)
    return 0 if is_whole else _EXIT_INTERRUPTED


def _follow(stream: Stream, *, is_shown: bool) -> bool:
    """Wait for the end, showing the text as it comes; False when Ctrl-C came first."""
    last = "\n"
    try:
        for text in stream:
            if is_shown and text and sys.stdout is not None:
                last = text
                sys.stdout.write(_harmless(text))
                sys.stdout.flush()
    except KeyboardInterrupt:
        stream.cancel()
        return False
    except BrokenPipeError:
        # nobody reads any more: keep the interpreter from complaining at exit
        sys.stdout = None
        stream.cancel()
    finally:
        if not last.endswith("\n") and sys.stdout is not None:
            print_answer("")
    return True


def _harmless(text: str) -> str:
    """What a model says must not drive the terminal; a file gets it as it is."""
    from offload.render.text import printable

    if sys.stdout is None or not sys.stdout.isatty():
        return text
    return "".join(c if c in "\n\t" else printable(c) for c in text)


def _tell(session: Session, stream: Stream) -> None:
    """Timings, and memory beside the plan's."""
    from offload.engine.summary import render_memory, render_timings

    lines = render_timings(session, stream.result)
    if (verification := session.check()) is not None:
        lines += render_memory(verification)
    for line in lines:
        notify(line)


def _load(plan: Plan, *, virtual: bool, n_threads: int | None) -> Session:
    """The loaded plan; on a terminal one line says how far loading is, until it is done."""
    from offload.engine.session import load

    is_seen = sys.stderr is not None and sys.stderr.isatty()
    try:
        return load(
            plan,
            virtual=virtual,
            n_threads=n_threads,
            on_progress=_show_progress if is_seen else None,
        )
    finally:
        if is_seen:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _show_progress(progress: LoadProgress) -> None:
    from offload.engine.summary import render_progress

    sys.stderr.write(f"\roffload: {render_progress(progress)}\x1b[K")
    sys.stderr.flush()
