"""What does llama.cpp's std::regex find with this pattern, and does the search end?

llama.cpp compiles every `-ot` pattern as a `std::regex` (ECMAScript grammar) and
searches each tensor name with it (src/llama-model-loader.cpp, `create_tensor`,
b11434). This file reads the grammar as libstdc++ does and writes each pattern
anew for Python's `re`, so that no difference between the two slips through: `.`
and `$` at line ends, `[]`, POSIX classes, `a++`, bytes beyond ASCII, inline flags.

Both engines backtrack, so a pattern such as `(a+)+$` can run for ever, there and
here. Patterns are data (whoever wrote the command may not be who plans with it):
what could take too long by search_bound.py is refused before anything is searched.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Final

from offload.errors import UsageError
from offload.search_bound import STATES_MAX, WAYS_MAX, Piece, choice, repeated, sequence

_PATTERN_MAX: Final = 1 << 15
_DEPTH_MAX: Final = 50

_BYTES: Final = frozenset(range(256))
_CONTROLS: Final = {"0": "\0", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ALNUM: Final = frozenset(c for c in range(128) if chr(c).isalnum())
_CLASSES: Final = {
    "d": frozenset(b"0123456789"), "s": frozenset(b" \t\n\v\f\r"), "w": _ALNUM | {ord("_")},
}  # fmt: skip
_POSIX: Final[dict[str, frozenset[int]]] = _CLASSES | {
    "alnum": _ALNUM,
    "alpha": _ALNUM - _CLASSES["d"],
    "blank": frozenset(b" \t"),
    "cntrl": frozenset((*range(32), 127)),
    "digit": _CLASSES["d"],
    "graph": frozenset(range(33, 127)),
    "lower": frozenset(range(ord("a"), ord("z") + 1)),
    "print": frozenset(range(32, 127)),
    "punct": frozenset(range(33, 127)) - _ALNUM,
    "space": _CLASSES["s"],
    "upper": frozenset(range(ord("A"), ord("Z") + 1)),
    "xdigit": frozenset(b"0123456789abcdefABCDEF"),
}
_ASSERTIONS: Final = (("^", r"\A"), ("$", r"\Z"), (r"\b", r"\b"), (r"\B", r"\B"))
_INTERVAL: Final = re.compile(r"\{(\d{1,6})(,(\d{1,6})?)?\}", re.ASCII)
_POSIX_NAME: Final = re.compile(r"\[:([A-Za-z]*):\]", re.ASCII)
_REFERENCE: Final = re.compile(r"\\([1-9]\d{0,3})(?!\d)", re.ASCII)
_SIMPLE_REPEATS: Final[dict[str, tuple[int, int | None]]] = {
    "*": (0, None), "+": (1, None), "?": (0, 1),
}  # fmt: skip


def byte_text(text: str) -> str:
    """One character for each byte of UTF-8, the way std::regex sees names and patterns."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("latin-1")


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile an `-ot` pattern with std::regex's meaning, to search `byte_text(name)` with.

    Raises UsageError, naming the character, for what std::regex refuses, for the few
    things that its implementations read differently, and for what could run for ever.
    """
    if len(pattern) > _PATTERN_MAX:
        raise UsageError(f"-ot pattern of {len(pattern)} characters; at most {_PATTERN_MAX}")
    return re.compile(_Parser(byte_text(pattern)).parse(), re.ASCII)


def _class_text(codes: Collection[int]) -> str:
    """A class for `re` that matches these bytes, by number: nothing in it can be misread."""
    if not codes:
        return "(?!)"
    return "[" + "".join(f"\\x{code:02x}" for code in sorted(codes)) + "]"


class _Parser:
    """Recursive descent over the grammar of libstdc++'s regex_scanner and regex_compiler."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.depth = 0
        self.n_groups = 0
        self.groups_closed: set[int] = set()

    def parse(self) -> str:
        """The whole pattern for `re`."""
        piece = self._disjunction(is_top=True)
        if self.at < len(self.pattern):
            raise self._refusal("a ')' without '('")
        if piece.all_ways > WAYS_MAX:
            raise self._refusal(
                "the search could run for ever, in llama.cpp too; use fewer '*' and '+',"
                " and none around another"
            )
        return piece.text

    def _refusal(self, why: str) -> UsageError:
        shown = self.pattern if len(self.pattern) <= 80 else f"{self.pattern[:79]}…"
        return UsageError(f"-ot pattern {shown!r} at character {self.at}: {why}")

    def _next(self, ahead: int = 0) -> str:
        """The next character, or one further `ahead`; empty at the end."""
        return self.pattern[self.at + ahead : self.at + ahead + 1]

    def _take(self, text: str) -> bool:
        if not self.pattern.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def _disjunction(self, *, is_top: bool = False) -> Piece:
        alternatives = [self._alternative()]
        while self._take("|"):
            alternatives.append(self._alternative())
        if is_top and len(alternatives) == 1:
            # what may match nothing at either end changes no answer, only the time to find it
            pieces = alternatives[0]
            while pieces and pieces[0].may_be_dropped:
                del pieces[0]
            while pieces and pieces[-1].may_be_dropped:
                del pieces[-1]
        sequences = [sequence(pieces) for pieces in alternatives]
        return self._checked(choice(sequences) if len(sequences) > 1 else sequences[0])

    def _checked(self, piece: Piece) -> Piece:
        if piece.n_states > STATES_MAX:
            raise self._refusal(f"std::regex stops at {STATES_MAX} states")
        return piece

    def _alternative(self) -> list[Piece]:
        pieces = []
        while self._next() not in ("", "|", ")"):
            # nothing repeats an assertion in std::regex
            pieces.append(self._assertion() or self._quantified(self._atom()))
        return pieces

    def _assertion(self) -> Piece | None:
        """What takes no room in the name."""
        for text, python in _ASSERTIONS:
            if self._take(text):
                return Piece(python)
        for opening in ("(?=", "(?!"):
            if self._take(opening):
                inner = self._group_body()
                return inner._replace(text=f"{opening}{inner.text})", first="")
        return None

    def _group_body(self) -> Piece:
        self.depth += 1
        if self.depth > _DEPTH_MAX:
            raise self._refusal(f"groups nest deeper than {_DEPTH_MAX}")
        inner = self._disjunction()
        if not self._take(")"):
            raise self._refusal("a '(' is not closed")
        self.depth -= 1
        return inner

    def _quantified(self, piece: Piece) -> Piece:
        """`piece` with all quantifiers that follow; std::regex takes several."""
        n = 0
        while (quantifier := self._next()) in ("*", "+", "?", "{"):
            if quantifier == "{":
                quantifier, least, most = self._interval()
            else:
                least, most = _SIMPLE_REPEATS[quantifier]
                self.at += 1
            if self._take("?"):
                quantifier += "?"
            if n:  # `a++` would be possessive in `re`
                piece = piece._replace(text=f"(?:{piece.text})")
            piece = self._checked(repeated(piece, quantifier, least, most))
            n += 1
        return piece

    def _interval(self) -> tuple[str, int, int | None]:
        match = _INTERVAL.match(self.pattern, self.at)
        if match is None:
            raise self._refusal(r"'{' wants a count such as {2}; write \{ for the brace itself")
        least = int(match[1])
        most = least if match[2] is None else None if match[3] is None else int(match[3])
        if most is not None and most < least:
            raise self._refusal(f"{match[0]!r} counts down")
        self.at = match.end()
        return match[0], least, most

    def _atom(self) -> Piece:
        c = self._next()
        if c == "\\":
            return self._escape()
        if c == "[":
            return self._bracket()
        if c == "(":
            return self._group()
        if c in "*+?{":
            raise self._refusal(f"nothing before {c!r} to repeat (a glob is no regular expression)")
        self.at += 1
        return Piece(r"[^\n\r]") if c == "." else Piece(re.escape(c), first=c)

    def _group(self) -> Piece:
        if self._take("(?:"):
            inner = self._group_body()
            return inner._replace(text=f"(?:{inner.text})")
        if self._next(1) == "?":
            opening = self.pattern[self.at : self.at + 3]
            raise self._refusal(f"{opening!r} is not ECMAScript; only '(?:', '(?=' and '(?!' are")
        self.at += 1
        self.n_groups += 1
        number = self.n_groups
        inner = self._group_body()
        self.groups_closed.add(number)
        return inner._replace(text=f"({inner.text})", n_states=inner.n_states + 2)

    def _escape(self) -> Piece:
        c = self._next(1)
        if c.lower() in _CLASSES:
            self.at += 2
            return Piece(f"\\{c}")
        reference = _REFERENCE.match(self.pattern, self.at)
        if reference is not None:
            if int(reference[1]) not in self.groups_closed:
                raise self._refusal(f"no group {reference[1]} is closed here")
            self.at = reference.end()
            return Piece(rf"(?:\{reference[1]})")
        c = self._escaped_character()
        return Piece(re.escape(c), first=c)

    def _escaped_character(self) -> str:
        c = self._next(1)
        if c in ("x", "u"):
            n_digits = 2 if c == "x" else 4
            digits = self.pattern[self.at + 2 : self.at + 2 + n_digits]
            if not re.fullmatch(f"[0-9a-fA-F]{{{n_digits}}}", digits) or int(digits, 16) > 255:
                raise self._refusal(f"\\{c} wants {n_digits} hexadecimal digits of one byte")
            self.at += 2 + n_digits
            return chr(int(digits, 16))
        if c not in _CONTROLS and (not c or (c.isascii() and c.isalnum())):
            raise self._refusal(f"\\{c} is not ECMAScript")
        self.at += 2
        return _CONTROLS.get(c, c)

    def _bracket(self) -> Piece:
        """A bracket expression, as the set of its bytes."""
        self.at += 1
        is_negated = self._take("^")
        codes: set[int] = set()
        last: str | frozenset[int] = ""  # what came before: a character, a class, or nothing open
        while not self._take("]"):
            if self._next() == "-" and last and self._next(1) != "]":
                self.at += 1
                codes |= self._range(last)
                last = ""
                continue
            last = self._bracket_item()
            codes |= {ord(last)} if isinstance(last, str) else last
        return Piece(_class_text(_BYTES - codes if is_negated else codes))

    def _range(self, first: str | frozenset[int]) -> set[int]:
        """`first`, the dash that is read, and what follows."""
        last = self._bracket_item()
        if not (isinstance(first, str) and isinstance(last, str)):
            raise self._refusal("a class begins or ends no range; put '-' last in the brackets")
        if first > last or not (first + last).isascii():
            raise self._refusal(f"'{first}-{last}' is no range")
        return set(range(ord(first), ord(last) + 1))

    def _bracket_item(self) -> str | frozenset[int]:
        """One character, or the bytes of a class."""
        c = self._next()
        if not c:
            raise self._refusal("a '[' is not closed")
        if c == "[" and self._next(1) in (":", ".", "="):
            match = _POSIX_NAME.match(self.pattern, self.at)
            if match is None or match[1].lower() not in _POSIX:
                raise self._refusal("no such class; '[:digit:]' and its like are known")
            self.at = match.end()
            return _POSIX[match[1].lower()]
        if c != "\\":
            self.at += 1
            return c
        escaped = self._next(1)
        if escaped.lower() in _CLASSES:
            self.at += 2
            codes = _CLASSES[escaped.lower()]
            return codes if escaped.islower() else _BYTES - codes
        if escaped == "b":
            self.at += 2
            return "\b"
        return self._escaped_character()
