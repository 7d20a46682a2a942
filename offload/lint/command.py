"""Which program is called, with which flags and values? A command line as a value.

Mirrors the argument loops of `common_params_parse_ex` (common/arg.cpp) and
`parse_cmd_params` (tools/llama-bench/llama-bench.cpp, b11434): long flags may be
written with `_`, a value is always the next word, environment variables count
where no flag does. Nothing is run and no variable of ours is read: the command is
data, and whatever stands in it gets an answer.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from itertools import dropwhile
from pathlib import PurePosixPath
from typing import Final

from offload.errors import UsageError
from offload.lint.finding import Finding, error, note, warning
from offload.lint.flags import BENCH, COMMON, ENV, IK, REMOVED

_WORDS_MAX: Final = 10_000
_TEXT_MAX: Final = 1 << 20
_SHELL_ENDS: Final = frozenset(("|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1", "&>"))
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_PROGRAM: Final = re.compile(r"(ik[_-])?llama[-.]|llama$|server$|main$", re.ASCII)
_SUBCOMMANDS: Final = frozenset(("server", "serve", "cli", "run", "bench", "completion"))
_NUMBER: Final = re.compile(r"-\d")
_CONTINUED: Final = ("\\", "^", "`")
"""What is left of a line continuation of a POSIX shell, cmd or PowerShell."""
_FINE_FOR_IK: Final = frozenset(("removed-flag", "flash-attn-without-value"))
_ADDITIVE: Final = frozenset(("-ot", "--spec-type", "--lora", "--override-kv", "-otd", "-mm"))


class Program(StrEnum):
    """Whose command line it is: their flags, defaults and separators differ."""

    SERVER = "llama-server"
    BENCH = "llama-bench"
    OTHER = "llama-cli"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One flag with its values; `name` is the first spelling of the flag, "" for unknown ones."""

    name: str
    spelling: str
    values: tuple[str, ...] = ()
    is_env: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """As it stands on a command line."""
        return (self.spelling, *self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """`prefix` are words before the program (`env`, `NAME=value`, `numactl …`)."""

    prefix: tuple[str, ...]
    program: tuple[str, ...]
    kind: Program
    settings: tuple[Setting, ...]
    is_ik: bool
    findings: tuple[Finding, ...]

    def of(self, name: str) -> tuple[Setting, ...]:
        """All settings of one flag, in order."""
        return tuple(s for s in self.settings if s.name == name)


def split_words(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command that may have been handed over as one quoted text.

    Raises UsageError where there is nothing, or a quote is never closed.
    """
    if sum(map(len, words)) > _TEXT_MAX or len(words) > _WORDS_MAX:
        raise UsageError("this is longer than any command line; give one command")
    if len(words) == 1 and any(c.isspace() for c in words[0].strip()):
        try:
            words = shlex.split(words[0].replace("\\\n", " "))
        except ValueError as error_:
            raise UsageError(f"the command cannot be split into words: {error_}") from None
    kept = [word for word in words if word.strip() not in _CONTINUED]
    kept[:1] = [word.removeprefix("ExecStart=") for word in kept[:1]]  # from a systemd unit
    words = tuple(dropwhile(lambda word: not word.strip(), kept))
    if not any(words):
        raise UsageError("no command to lint; write it behind --: offload lint -- llama-server …")
    return words


def parse_command(
    words: Sequence[str],
    known_flags: Collection[str] | None = None,
    *,
    is_argv: bool = False,
) -> Command:
    """The command in these words; `known_flags` are those of the build it is for, if known.

    An argv (`is_argv`) is taken word by word; else a single word may be a whole command.
    Raises UsageError where there is nothing of llama.cpp in it.
    """
    words = _up_to_shell(tuple(words) if is_argv else split_words(words))
    first, last = _program_at(words)
    prefix, program, rest = words[:first], words[first:last], words[last:]
    kind = _kind(program)
    reader = _Reader(rest, kind, known_flags)
    settings = (*_from_environment(prefix), *reader.settings())
    is_ik = bool(reader.ik_flags) or any(
        "ik_llama" in word or "sweep-bench" in word for word in program
    )
    findings = [f for f in reader.findings if not (is_ik and f.code in _FINE_FOR_IK)]
    if program and not any(map(_is_program, program)):
        if not is_argv and not any(setting.name for setting in settings):
            raise UsageError(
                f"{_short(program[-1])!r} is no program of llama.cpp and has none of its flags;"
                " offload lint -- llama-server …"
            )
        findings.append(_unknown_program(program[-1]))
    if reader.has_bare_fit and not is_ik:
        findings.append(error("missing-value", "--fit needs a value", "--fit on"))
    if reader.ik_flags:
        findings.append(_ik_flags(reader.ik_flags))
    findings += _repeated(settings, kind)
    return Command(
        prefix=prefix,
        program=program or ("llama-server",),
        kind=kind,
        settings=settings,
        is_ik=is_ik,
        findings=tuple(findings),
    )


def _up_to_shell(words: tuple[str, ...]) -> tuple[str, ...]:
    """What stands before a pipe or a redirection."""
    ends = [i for i, word in enumerate(words) if word in _SHELL_ENDS]
    return words[: ends[0]] if ends and ends[0] else words


def _stem(word: str) -> str:
    return PurePosixPath(word.replace("\\", "/")).name.removesuffix(".exe").lower()


def _program_at(words: tuple[str, ...]) -> tuple[int, int]:
    """First and last+1 index of the program's words; equal where the command has no program."""
    if not words[0].startswith("-") and (named := _programs_in(words)):
        # a word behind a flag may be its value: sudo -u llama-user llama-server
        i = next((i for i in named if not words[i - 1].startswith("-")), named[0])
        is_pair = _stem(words[i]) == "llama" and words[i + 1 : i + 2] != ()
        return i, i + 1 + (is_pair and words[i + 1] in _SUBCOMMANDS)
    n_assignments = 0
    while n_assignments < len(words) and _ASSIGNMENT.fullmatch(words[n_assignments]):
        n_assignments += 1
    is_flag = words[n_assignments : n_assignments + 1] and words[n_assignments].startswith("-")
    return n_assignments, min(n_assignments + (0 if is_flag else 1), len(words))


def _is_program(word: str) -> bool:
    return bool(_PROGRAM.match(_stem(word))) and not _ASSIGNMENT.fullmatch(word)


def _programs_in(words: tuple[str, ...]) -> list[int]:
    """Where names of llama.cpp's programs stand, but not as a value: --alias llama-3."""
    return [
        i
        for i, word in enumerate(words)
        if _is_program(word) and not (i and COMMON.get(words[i - 1], ("", 0))[1])
    ]


def _kind(program: tuple[str, ...]) -> Program:
    name = _stem(program[-1]) if program else "llama-server"
    if name in ("llama-bench", "bench"):
        return Program.BENCH
    others = ("cli", "completion", "perplexity", "imatrix", "main", "run", "sweep-bench")
    is_other = name.removeprefix("llama-").startswith((*others, "batched", "simple", "speculative"))
    return Program.OTHER if is_other else Program.SERVER


def _from_environment(prefix: tuple[str, ...]) -> Iterator[Setting]:
    for word in prefix:
        name, equals, value = word.partition("=")
        if equals and name in ENV:
            yield Setting(name=ENV[name], spelling=name, values=(value,), is_env=True)


class _Reader:
    """The words behind the program, one flag after the other."""

    def __init__(
        self, words: tuple[str, ...], kind: Program, known: Collection[str] | None
    ) -> None:
        self.words = words
        self.table = BENCH if kind is Program.BENCH else COMMON
        self.known = known
        self.kind = kind
        self.findings: list[Finding] = []
        self.ik_flags: list[str] = []
        self.has_bare_fit = False
        self.at = 0

    def settings(self) -> Iterator[Setting]:
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            spelling = word.replace("_", "-") if word.startswith("--") else word
            yield self._setting(word, spelling)

    def _setting(self, word: str, spelling: str) -> Setting:
        if spelling in self.table:
            name, n_values = self.table[spelling]
            self._check_known(spelling)
            return self._with_values(name, spelling, n_values)
        if spelling in IK:
            self.ik_flags.append(spelling)
            name, n_values = IK[spelling]
            return self._with_values(name, spelling, n_values)
        if spelling in REMOVED:
            return self._removed(spelling)
        flag, equals, _ = spelling.partition("=")
        if equals and (flag in self.table or flag in IK):
            return self._with_equals(flag, word[len(flag) + 1 :])
        return self._unknown(word)

    def _check_known(self, spelling: str) -> None:
        if self.known is not None and spelling not in self.known:
            self.findings.append(
                error(
                    "unknown-flag",
                    f"{spelling}: this build does not know it and stops with 'invalid argument'",
                    "use a newer build, or leave it out",
                )
            )

    def _with_values(self, name: str, spelling: str, n_values: int) -> Setting:
        if name == "-fa" and self._is_bare() and self.kind is not Program.BENCH:
            self.findings.append(_bare_flash_attn(self._next()))
            return Setting(name=name, spelling=spelling, values=("on",))
        if name == "-fit" and self._is_bare():
            self.has_bare_fit = True  # ik_llama.cpp's --fit takes no value
            return Setting(name=name, spelling=spelling, values=("on",))
        values = self.words[self.at : self.at + n_values]
        if len(values) < n_values or any(self._is_flag(v) for v in values):
            follows = f"; llama.cpp would take {values[-1]!r} for it" if values else ""
            self.findings.append(
                error("missing-value", f"{spelling} needs a value{follows}", f"{spelling} VALUE")
            )
            return Setting(name="", spelling=spelling)
        self.at += n_values
        return Setting(name=name, spelling=spelling, values=values)

    def _next(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def _is_bare(self) -> bool:
        """True where no value follows a flag that older programs took for a switch."""
        following = self._next()
        return not following or (following.startswith("-") and following != "-1")

    def _is_flag(self, word: str) -> bool:
        known = word in self.table or word in IK or word in REMOVED
        return known and word.startswith("-") and not _NUMBER.match(word)

    def _removed(self, spelling: str) -> Setting:
        values: tuple[str, ...] = ()
        if self.kind is Program.BENCH and spelling in ("-mmp", "--mmap"):
            return self._bench_mmap(spelling)
        if " N" in REMOVED[spelling]:
            values = self.words[self.at : self.at + 1]
            self.at += len(values)
        instead = REMOVED[spelling].replace(" N", " " + (values[0] if values else "N"))
        self._tell_removed(spelling, instead)
        return Setting(name=spelling, spelling=spelling, values=values)

    def _tell_removed(self, spelling: str, instead: str) -> None:
        text = f"{spelling}: builds as new as b11434 refuse it ('invalid argument')"
        if self.known is None:
            self.findings.append(warning("removed-flag", text, instead))
        elif spelling not in self.known:
            text = f"{spelling}: this build refuses it ('invalid argument')"
            self.findings.append(error("removed-flag", text, instead))

    def _bench_mmap(self, spelling: str) -> Setting:
        """Older builds of llama-bench said `-mmp 0` for `-lm none`."""
        values = self.words[self.at : self.at + 1]
        self.at += len(values)
        is_mapped = values[:1] != ("0",)
        self._tell_removed(spelling, f"-lm {'mmap' if is_mapped else 'none'}")
        return Setting(name="--mmap" if is_mapped else "--no-mmap", spelling=spelling)

    def _with_equals(self, flag: str, value: str) -> Setting:
        self.findings.append(
            error(
                "flag-equals-value",
                f"{flag}={_short(value)}: llama.cpp takes the value from the next word only and"
                " stops with 'invalid argument'",
                f"{flag} {_short(value)}",
            )
        )
        table = self.table if flag in self.table else IK
        name, n_values = table[flag]
        is_plain = n_values == 1
        return Setting(name=name if is_plain else "", spelling=flag, values=(value,))

    def _unknown(self, word: str) -> Setting:
        values: tuple[str, ...] = ()
        if not word.startswith("-"):
            text = f"{_short(word)!r} belongs to no flag; llama.cpp stops with 'invalid argument'"
            self.findings.append(error("unknown-flag", text, "leave it out, or quote what it is"))
            return Setting(name="", spelling=word)
        if self._next() and not self._next().startswith("-"):
            values = (self._next(),)
            self.at += 1
        if self.known is not None and word in self.known:
            return Setting(name=word, spelling=word, values=values)
        near = get_close_matches(word[:40], self.table, n=1, cutoff=0.6)
        self.findings.append(
            error(
                "unknown-flag",
                f"{_short(word)}: no such flag; {self.kind} stops with 'invalid argument'",
                f"did you mean {near[0]}?" if near else "leave it out",
            )
        )
        return Setting(name="", spelling=word, values=values)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"


def _unknown_program(word: str) -> Finding:
    return note(
        "unknown-program",
        f"{_short(word)} is not the name of a program of llama.cpp; what follows is read as"
        " llama-server's flags",
    )


def _ik_flags(spellings: Sequence[str]) -> Finding:
    listed = ", ".join(dict.fromkeys(spellings))
    return warning(
        "ik-flag",
        f"{listed}: known to ik_llama.cpp only; llama.cpp itself stops with 'invalid argument'."
        " Figures are computed as llama.cpp places things",
        f"for llama.cpp leave {listed} out",
    )


def _bare_flash_attn(follows: str) -> Finding:
    taken = f" and takes {_short(follows)!r} for it" if follows else ""
    return warning(
        "flash-attn-without-value",
        f"-fa: b11434 wants a value{taken}; older builds took none",
        "-fa on",
    )


def _repeated(settings: Sequence[Setting], kind: Program) -> Iterator[Finding]:
    """Flags given twice: the last one counts, except for lists."""
    seen: dict[str, Setting] = {}
    for setting in settings:
        before = seen.get(setting.name) if setting.name else None
        seen[setting.name] = setting
        if before is None or kind is Program.BENCH or before.is_env:
            continue
        if setting.name == "-ot":
            yield note(
                "repeated-flag",
                "-ot is given more than once: llama.cpp adds the rules up, but warns that only the"
                " last counts; other programs really take the last",
                "-ot 'RULE=BUFFER,RULE=BUFFER'",
            )
        elif setting.name not in _ADDITIVE and setting.values != before.values:
            yield warning(
                "repeated-flag",
                f"{_short(' '.join(before.words))} is overruled by the later"
                f" {_short(' '.join(setting.words))}",
                _short(" ".join(setting.words)),
            )
