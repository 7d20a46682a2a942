"""A session answers prompt after prompt from one loaded model, and says what it took."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from offload.device import devices_from_flags
from offload.emit import make_launch
from offload.engine.load_options import LoadOptions
from offload.engine.session import LoadProgress, Session, load
from offload.engine.stream import Sampling, Stream
from offload.errors import LlamaCppError, UsageError
from offload.model import make_model
from offload.options import PlanOptions
from offload.plan import Plan, make_plan
from offload.source import read_header
from offload.units import MIB
from tuner.synth import write_random
from tuner.synth.blocks import RandomData
from tuner.synth.container import write_gguf
from tuner.synth.model import make_file, make_small_shape

pytestmark = pytest.mark.usefixtures("llama_cpp_python")


@pytest.fixture(scope="module")
def options(small_moe: Path) -> LoadOptions:
    """The small model over two cards, some experts on the host."""
    return LoadOptions(
        path=str(small_moe), tensor_split=(3, 4), overrides=(("blk.[14].*exps", "CPU"),), n_ctx=256
    )


@pytest.fixture(scope="module")
def session(options: LoadOptions) -> Iterator[Session]:
    """That model, loaded once."""
    with load(options, virtual=True) as loaded:
        yield loaded


def plan_of(path: Path, *gpus: str, n_ctx: int = 256) -> Plan:
    """A plan for described cards."""
    cards = devices_from_flags(None, None, gpus, found=())
    options = PlanOptions(n_ctx=n_ctx, margin_bytes=(0,))
    return make_plan(make_model(read_header(str(path))), cards, options)


def test_the_same_prompt_again(session: Session) -> None:
    """Nothing of an earlier prompt is left: greedy, the same prompt gives the same answer."""
    first = session.generate("Hello", n_predict=12)
    session.generate("Something else altogether, and longer.", n_predict=3)
    again = session.generate("Hello", n_predict=12)
    assert first.tokens == again.tokens
    assert first.text == again.text
    assert (first.stop, again.stop) == ("length", "length")


JUDGE = """
import sys
from llama_cpp import Llama
llama = Llama(sys.argv[1], n_ctx=256, n_threads=1, n_gpu_layers=0, logits_all=False, verbose=False)
prompt = llama.tokenize(sys.argv[2].encode(), add_bos=True, special=True)
tokens = llama.generate(prompt, temp=0.0, top_k=40)
print(*(next(tokens) for _ in range(20)))
"""


def test_llama_cpp_pythons_own_class_says_the_same(options: LoadOptions) -> None:
    """The judge: prompt tokens and greedy answer of `llama_cpp.Llama` in a process of its own."""
    prompt = "The quick brown fox, naïve €uro."
    judged = subprocess.run(
        [sys.executable, "-c", JUDGE, options.path, prompt],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    plain = replace(options, n_gpu_layers=0, overrides=())
    with load(plain) as session:
        run = session.generate(prompt, n_predict=20)
    assert run.tokens == tuple(int(token) for token in judged.stdout.split())


def test_streaming_gives_the_whole_text(session: Session) -> None:
    """The pieces are the text, one for each token, and hooks hear the same ones."""
    stream = session.stream("Tell me", n_predict=20)
    pieces = list(stream)
    heard: list[str] = []
    whole = session.generate("Tell me", n_predict=20, on_text=heard.append)
    assert "".join(pieces) == "".join(heard) == whole.text == stream.result.text
    assert len(stream.tokens) == 20
    assert whole.prompt_t_s is not None and whole.decode_t_s is not None
    assert min(whole.prompt_s, whole.decode_s, whole.load_s) > 0


def test_seeds(session: Session) -> None:
    """A seed repeats a sampled answer; without one every answer has its own, and tells it."""
    warm = Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=7)
    first = session.generate("Once", n_predict=12, sampling=warm)
    assert first.tokens == session.generate("Once", n_predict=12, sampling=warm).tokens
    other = session.generate("Once", n_predict=12, sampling=replace(warm, seed=8))
    assert other.tokens != first.tokens
    free = session.generate("Once", n_predict=12, sampling=replace(warm, seed=None))
    again = session.generate("Once", n_predict=12, sampling=replace(warm, seed=free.seed))
    assert free.tokens == again.tokens


def test_one_candidate_is_greedy(session: Session) -> None:
    """`top_k=1` leaves one token to choose from, however warm."""
    one = session.generate("Once", n_predict=8, sampling=Sampling(temperature=2.0, top_k=1))
    assert one.tokens == session.generate("Once", n_predict=8).tokens


def test_stop_words(session: Session) -> None:
    """Generation ends at a stop word, which is not shown."""
    whole = session.generate("Hello", n_predict=20).text
    word = whole[5:9]
    run = session.generate("Hello", n_predict=20, stop=[word])
    assert run.stop == "stop"
    assert run.text == whole[: whole.find(word)]


def test_a_full_context_ends_it(session: Session) -> None:
    """Prompt and answer share the context; the last token needs no room in it."""
    run = session.generate("Hello", n_predict=-1)
    assert run.stop == "context"
    assert run.n_prompt + len(run.tokens) == session.n_ctx + 1 == 257


def test_prompts_that_cannot_be(session: Session) -> None:
    """Too long, without tokens, or with tokens the model lacks: refused, and the session lives."""
    with pytest.raises(UsageError, match=r"300 tokens, the context holds 256.*-c"):
        session.generate([1] * 300)
    for bad in ([], [10**6], [-1]):
        with pytest.raises(UsageError, match="prompt"):
            session.generate(bad)
    with pytest.raises(UsageError, match="at least one"):
        session.stream("Hello", n_predict=0)
    with pytest.raises(UsageError, match="seed"):
        session.stream("Hello", sampling=Sampling(seed=-1))
    with pytest.raises(UsageError, match="temperature"):
        session.stream("Hello", sampling=Sampling(temperature=float("nan")))
    # a text may be empty, since this vocabulary has a start token
    assert session.generate("", n_predict=1).n_prompt == 1
    assert session.generate([1] * 256, n_predict=1).n_prompt == 256


def test_prompts_longer_than_a_batch(options: LoadOptions) -> None:
    """Read in batches, a prompt means the same."""
    prompt = [n % 900 for n in range(200)]
    with load(replace(options, n_batch=32, n_ubatch=32), virtual=True) as session:
        cut = session.generate(prompt, n_predict=6)
    with load(replace(options, n_batch=256, n_ubatch=32), virtual=True) as session:
        whole = session.generate(prompt, n_predict=6)
    assert cut.tokens == whole.tokens


def test_what_prompts_have_in_common_is_read_once(session: Session) -> None:
    """With `cache_prompt` only the rest of a prompt is read, its last token always."""
    session.generate([*range(50, 90)], n_predict=4)
    again = session.generate([*range(50, 80), 7, 8], n_predict=4, cache_prompt=True)
    assert again.n_reused == 30
    same = session.generate([*range(50, 80), 7, 8], n_predict=4, cache_prompt=True)
    assert same.n_reused == 31
    assert session.generate([*range(50, 80)], n_predict=4).n_reused == 0


def test_states_that_cannot_go_back_are_read_anew(tmp_path: Path) -> None:
    """A recurrent model remembers no earlier state, so nothing is reused and nothing is wrong."""
    path = write_random(tmp_path / "m.gguf", arch="qwen3next", n_layer=4, quant="Q8_0")
    with load(LoadOptions(path=str(path), n_gpu_layers=0, n_ctx=256)) as session:
        fresh = session.generate([*range(50, 80), 7], n_predict=6)
        session.generate([*range(50, 90)], n_predict=4)
        again = session.generate([*range(50, 80), 7], n_predict=6, cache_prompt=True)
    assert again.n_reused == 0
    assert again.tokens == fresh.tokens


def test_an_unfinished_stream_is_ended_by_the_next(session: Session) -> None:
    """Whoever stops reading loses nothing but the rest."""
    stream = session.stream("Hello", n_predict=-1)
    head = [next(stream) for _ in range(3)]
    assert stream.result.stop == "cancelled"
    assert session.generate("Hello", n_predict=3).text == "".join(head)
    assert stream.is_finished
    assert stream.result.stop in ("cancelled", "context")


def test_interrupted_while_generating(session: Session) -> None:
    """Ctrl-C is a KeyboardInterrupt, what was generated is kept, and the session goes on."""
    stream = session.stream("Hello", n_predict=-1)
    pieces = [next(stream) for _ in range(3)]
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        pieces += follow_slowly(stream)
    assert stream.cancel()
    assert stream.result.stop == "cancelled"
    assert stream.result.n_prompt == 7
    assert stream.result.text.startswith("".join(pieces))
    whole = session.generate("Hello", n_predict=len(stream.tokens))
    assert whole.tokens == stream.result.tokens


def test_interrupted_while_waiting(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream itself ends the generation, so that what there is is whole when we hear of it."""
    stream = session.stream("Hello", n_predict=-1)
    first = next(stream)

    def interrupt(_timeout_s: float) -> dict[str, object]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stream._conversation, "hear", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
    assert stream.is_finished
    assert stream.result.stop == "cancelled"
    assert stream.result.n_prompt == 7
    assert stream.result.text.startswith(first)


def follow_slowly(stream: Stream) -> list[str]:
    """As somebody would whose terminal is slow; most of the time is spent waiting."""
    pieces = []
    for text in stream:
        pieces.append(text)
        time.sleep(0.01)
    return pieces


def test_progress(options: LoadOptions) -> None:
    """Loading tells how many bytes are there, up to all of them."""
    heard: list[LoadProgress] = []
    with load(options, virtual=True, on_progress=heard.append) as session:
        assert session.model_bytes < heard[-1].total_bytes
    assert heard[-1].n_bytes == heard[-1].total_bytes == Path(options.path).stat().st_size
    assert sorted(p.n_bytes for p in heard) == [p.n_bytes for p in heard]
    assert all(p.bytes_per_s > 0 for p in heard)


def test_parts_of_a_split_model_are_counted(tmp_path: Path) -> None:
    """Progress is of all parts together."""
    path = write_random(tmp_path / "[m].gguf", arch="qwen3moe", n_layer=4, quant="Q8_0", n_parts=3)
    heard: list[LoadProgress] = []
    with load(LoadOptions(path=str(path), n_gpu_layers=0, n_ctx=64), on_progress=heard.append):
        pass
    parts = sorted(tmp_path.iterdir())
    assert len(parts) == 3
    assert heard[-1].total_bytes == sum(part.stat().st_size for part in parts)


def test_a_plan_a_launch_and_options_are_one(small_moe: Path) -> None:
    """Whichever of the three says it, the model lies the same."""
    plan = plan_of(small_moe, "CUDA0:1GiB", "CUDA1:1GiB")
    seen = set()
    for what in (plan, make_launch(plan)):
        with load(what, virtual=True) as session:
            seen.add(session.generate("Hello", n_predict=5).tokens)
            assert [d.model_bytes > 0 for d in session.report.devices] == [True, True]
            assert (session.check() is None) == (what is not plan)
    assert len(seen) == 1


def test_cards_that_are_not_here(small_moe: Path) -> None:
    """A plan for real cards is refused where they are not, with the ways out."""
    with pytest.raises(LlamaCppError, match=r"no CUDA0.*--virtual.*GGML_CUDA"):
        load(plan_of(small_moe, "CUDA0:1GiB"))


def test_another_number_of_cards(small_moe: Path, cards: tuple[object, ...]) -> None:
    """Servers must be as many as the plan has cards."""
    plan = plan_of(small_moe, "CUDA0:1GiB", "CUDA1:1GiB")
    with pytest.raises(UsageError, match=r"planned for 2 cards, but here are: RPC0, RPC1, RPC2"):
        load(plan, endpoints=[card.endpoint for card in cards])  # type: ignore[attr-defined]


def test_no_vocabulary(tmp_path: Path) -> None:
    """Without a vocabulary prompts and answers are token ids; text is refused."""
    metadata, tensors = make_file(make_small_shape("qwen3moe"), quant="Q8_0", vocab="none")
    path = tmp_path / "m.gguf"
    write_gguf(path, metadata, tensors, fill=RandomData(0))
    with load(LoadOptions(path=str(path), n_gpu_layers=0, n_ctx=64)) as session:
        assert not session.has_text
        with pytest.raises(UsageError, match="no vocabulary"):
            session.generate("Hello")
        run = session.generate([5, 6, 7], n_predict=4)
    assert len(run.tokens) == 4
    assert run.text == ""


def test_chat_templates(session: Session, tmp_path: Path) -> None:
    """The model's own template is used where llama.cpp knows it; else that is said."""
    messages = [{"role": "user", "content": "Hi"}]
    with pytest.raises(UsageError, match="no chat template"):
        session.chat_prompt(messages)
    shape = make_small_shape("qwen3moe")
    metadata, tensors = make_file(shape, quant="Q8_0", vocab="bytes")
    for template, expected in (
        ("{% <|im_start|> %}", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        ("{{ nobody_knows_this }}", None),
    ):
        path = tmp_path / "m.gguf"
        write_gguf(
            path, {**metadata, "tokenizer.chat_template": template}, tensors, fill=RandomData(0)
        )
        with load(LoadOptions(path=str(path), n_gpu_layers=0, n_ctx=64)) as chatting:
            if expected is None:
                with pytest.raises(UsageError, match="does not know"):
                    chatting.chat_prompt(messages)
            else:
                assert chatting.chat_prompt(messages) == expected


def test_closing_ends_everything(options: LoadOptions) -> None:
    """After `close` no process of it is left, and using it is an error, not a hang."""
    session = load(options, virtual=True)
    pid = session.pid
    session.close()
    session.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(LlamaCppError, match="closed"):
        session.generate("Hello")


def test_memory_is_reported(session: Session) -> None:
    """llama.cpp's own numbers: weights on both cards and the host, none lost."""
    report = session.report
    held = [*report.devices, report.host, *report.extra]
    assert sum(b.model_bytes for b in held) == pytest.approx(session.model_bytes, abs=MIB // 8)
    assert all(d.context_bytes > 0 for d in report.devices)
