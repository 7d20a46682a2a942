"""An offload.toml is read strictly: what is not understood is named, and what to write."""

from __future__ import annotations

import pytest

from offload.cli.check_flags import plan_flags
from offload.errors import UsageError
from tuner.check.config import parse_config

MODEL = '[[model]]\npath = "m/a.gguf"\n'


def test_all_of_it() -> None:
    """Every table is read; names default to the file's, paths are seen from the file's folder."""
    config = parse_config(
        '[machine]\ngpus = 2\n[options]\nctx-size = 8192\n[check]\nrun = ["memory", "plan"]\n'
        'baseline = "b"\nllama-server = "bin/llama-server"\n[tolerances]\nmemory = "64MiB"\n'
        + MODEL
        + "budgets = { decode-t-s = 20 }\nmeasured = { prefill-t-s = 100.5 }\n",
        "ci/offload.toml",
    )
    (entry,) = config.models
    assert (entry.name, entry.budgets, entry.measured) == (
        "a",
        {"decode-t-s": 20.0},
        {"prefill-t-s": 100.5},
    )
    assert config.checks == ("plan", "memory") and config.llama_server == "bin/llama-server"
    assert str(config.locate(entry.path)) == "ci/m/a.gguf"
    assert config.memory.n_bytes == 64 << 20 and config.plan_memory.share == 0.01


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no model to check"),
        ("x = [", "not TOML"),
        ("[cheks]\n" + MODEL, "unknown key 'cheks'"),
        ("[check]\nruns = []\n" + MODEL, "[check]: unknown key 'runs'; one of run"),
        ('[check]\nrun = ["sped"]\n' + MODEL, "[check]: run: no check 'sped'"),
        ("[check]\nspeed-time-s = 0.5\n" + MODEL, "speed-time-s = 0.5: from 1 to"),
        ("[check]\nthreads = 0\n" + MODEL, "threads = 0: from 1 to"),
        ('[tolerances]\ndecode = "5MiB"\n' + MODEL, "decode = '5MiB': a share"),
        ('[[model]]\npath = "a\\u0000b"\n', "write it like path"),
        ("[check]\nrun = []\n" + MODEL, "names no check"),
        ("[check]\nbaseline = 3\n" + MODEL, "baseline = 3: write it like"),
        ('[tolerances]\nmemory = "1x"\n' + MODEL, "[tolerances]: memory '1x' is not a size"),
        ('[tolerances]\nmemory = "200%"\n' + MODEL, "write it like 1%"),
        ("[tolerances]\nmemory = 1\n" + MODEL, 'write it like memory = "1%"'),
        ("[[model]]\nname = 'a'\n", "[[model]] 1 has no path"),
        (MODEL + 'name = "../a"\n', "names a file"),
        (MODEL + MODEL, "two models named 'a'"),
        (MODEL + "size = 3\n", "[[model]] 1: unknown key 'size'"),
        (MODEL + "budgets = { decode = 3 }\n", "budgets: unknown key 'decode'"),
        (MODEL + "budgets = { decode-t-s = -3 }\n", "above 0"),
        (MODEL + "budgets = { decode-t-s = nan }\n", "above 0"),
        (MODEL + 'budgets = { decode-t-s = "3" }\n', "write it like decode-t-s = 40"),
        (MODEL + "budgets = { decode-t-s = true }\n", "write it like decode-t-s"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    """One line that names the file, the table and what to write."""
    with pytest.raises(UsageError) as caught:
        parse_config(text, "offload.toml")
    message = str(caught.value)
    assert message.startswith("offload.toml") and said in message and "\n" not in message


def flags(machine: dict[str, object], options: dict[str, object], **own: object) -> object:
    """The flags of one model, or the refusal."""
    return plan_flags(machine, options, own, path="o.toml", model="a", llama_server=None)[0]


def test_keys_are_flags() -> None:
    """Long and short names, numbers where the flag takes text, lists; a model's own go last."""
    got, profile = plan_flags(
        {"gpus": 2, "vram": "22GiB", "profile": "p.json", "devices": "d.toml"},
        {"ctx-size": 8192, "ub": 1024, "tensor-split": [2, 1], "ot": "x=CPU", "no-host": True},
        {"c": 4096, "strategy": "even"},
        path="ci/o.toml",
        model="a",
        llama_server=None,
    )
    assert (got.gpus, got.vram, got.n_ctx, got.n_ubatch) == (2, "22GiB", "4096", "1024")
    assert (got.tensor_split, got.override, got.no_host) == ("2,1", ["x=CPU"], True)
    assert got.devices_file == "ci/d.toml" and profile == "ci/p.json"
    assert got.strategy == "even"


@pytest.mark.parametrize(
    ("machine", "options", "said"),
    [
        ({"gpuss": 2}, {}, "[machine]: unknown key 'gpuss'; one of"),
        ({"gpus": "2"}, {}, "[machine]: gpus = '2': write it like gpus = 8192"),
        ({"gpus": True}, {}, "gpus = True"),
        ({"vram": "22Gx", "gpus": 2}, {}, "vram '22Gx' is not a size"),
        ({"gpu": ["CUDA0:1x"]}, {}, "CUDA0"),
        ({"profile": 3}, {}, "profile = 3"),
        ({}, {"ctx-size": "8k"}, "-c '8k': a number of tokens"),
        ({}, {"ctx-size": 1, "c": 2}, "set twice"),
        ({}, {"llama-server": "x"}, "unknown key 'llama-server'"),
        ({}, {"gpus": 2}, "[options]: unknown key 'gpus'"),
        ({}, {"no-host": 1}, "no-host = 1: write it like no-host = true"),
        ({}, {"ctk": "f99"}, "-ctk 'f99'"),
        ({}, {"strategy": "best"}, "one of own, even"),
        ({}, {"tensor-split": [True]}, "tensor-split = [True]"),
    ],
)
def test_what_flags_refuse(
    machine: dict[str, object], options: dict[str, object], said: str
) -> None:
    """A key that is no flag, or a value that the flag would refuse, is named with its table."""
    with pytest.raises(UsageError) as caught:
        flags(machine, options)
    message = str(caught.value)
    assert message.startswith("o.toml: [") and said in message and "\n" not in message
