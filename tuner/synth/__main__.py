"""`python -m tuner.synth`: what files can be written, and writing them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from offload.errors import OffloadError
from tuner.shapes import SHAPES
from tuner.shapes.recipes import RECIPES
from tuner.synth.model import (
    RANDOM_ARCHS,
    find_shape,
    make_file,
    make_like,
    make_small_shape,
    write_random_shape,
    write_shape,
)
from tuner.synth.vocab import VOCABS

_SIZES = (
    ("--layers", "n_layer", "layers, without MTP blocks"),
    ("--embd", "n_embd", "model width"),
    ("--experts", "n_expert", "routed experts"),
    ("--used", "n_expert_used", "experts used per token"),
    ("--ff-exp", "n_ff_exp", "width of one expert"),
    ("--ff", "n_ff", "width of dense FFNs"),
    ("--heads", "n_head", "attention heads"),
    ("--kv-heads", "n_head_kv", "KV heads"),
    ("--head-dim", "n_embd_head", "width of one head"),
    ("--dense-lead", "n_layer_dense_lead", "leading layers without experts"),
    ("--nextn", "n_layer_nextn", "MTP blocks"),
    ("--vocab-size", "n_vocab", "tokens, at least 260"),
    ("--ctx", "n_ctx_train", "train context"),
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tuner.synth", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the catalogue: names, figures, file sizes")

    shape = commands.add_parser("shape", help="a real model's header over a hole of the right size")
    shape.add_argument("name", help="a name from `list`")
    shape.add_argument("out", help="file to write; parts are named after it")
    shape.add_argument("--quant", help=f"recipe: {', '.join(RECIPES)}")
    shape.add_argument("--vocab", choices=VOCABS, default="none", help="default: none")
    shape.add_argument("--split", type=int, default=1, metavar="N", help="write N parts")

    rand = commands.add_parser("random", help="random weights that llama.cpp runs")
    rand.add_argument("out", help="file to write; parts are named after it")
    kind = rand.add_mutually_exclusive_group(required=True)
    kind.add_argument("--arch", choices=RANDOM_ARCHS, help="a small model of this architecture")
    kind.add_argument("--like", metavar="NAME", help="a model of `list`, cut to --layers layers")
    for flag, dest, text in _SIZES:
        rand.add_argument(flag, dest=dest, type=int, metavar="N", help=text)
    rand.add_argument("--quant", help="recipe; default Q4_K_M, with --like the model's own")
    rand.add_argument("--seed", type=int, default=0, help="same seed, same bytes; default 0")
    rand.add_argument("--split", type=int, default=1, metavar="N", help="write N parts")
    return parser


def _list() -> None:
    print(f"{'name':24} {'arch':14} {'layers':>6} {'experts':>9} {'quant':12} {'GB':>7}")
    for shape in SHAPES.values():
        _, tensors = make_file(shape)
        gigabytes = sum(t.n_bytes for t in tensors) / 1e9
        experts = f"{shape.n_expert_used}/{shape.n_expert}" if shape.n_expert else "-"
        layers = f"{shape.n_layer}+{shape.n_layer_nextn}" if shape.n_layer_nextn else shape.n_layer
        print(
            f"{shape.name:24} {shape.arch:14} {layers:>6} {experts:>9} {shape.quant:12}"
            f" {gigabytes:7.1f}"
        )


def _random(args: argparse.Namespace) -> str:
    sizes = {dest: getattr(args, dest) for _, dest, _ in _SIZES}
    given = {dest: value for dest, value in sizes.items() if value is not None}
    if args.like is None:
        shape = make_small_shape(args.arch, **given)
        quant = args.quant or "Q4_K_M"
    else:
        base = find_shape(args.like)
        unused = given.keys() - {"n_layer", "n_vocab"}
        if unused:
            flags = ", ".join(flag for flag, dest, _ in _SIZES if dest in unused)
            raise OffloadError(f"--like keeps the model's widths; leave out {flags}")
        shape = make_like(
            base, n_layer=given.get("n_layer", base.n_layer), n_vocab=given.get("n_vocab")
        )
        quant = args.quant or base.quant
    path = write_random_shape(shape, args.out, quant=quant, seed=args.seed, n_parts=args.split)
    return str(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; prints the first file written. Returns the exit code, 2 for errors."""
    args = _parser().parse_args(argv)
    try:
        if args.command == "list":
            _list()
        elif args.command == "shape":
            path = write_shape(
                args.name, args.out, quant=args.quant, vocab=args.vocab, n_parts=args.split
            )
            print(path)
        else:
            print(_random(args))
    except (OffloadError, OSError) as error:
        print(f"tuner.synth: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("tuner.synth: interrupted, nothing written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
