"""What can be asked of `serve`, whom does it tell, and what does it return?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from offload.engine.serving.canary import CanaryResult
from offload.engine.serving.readiness import LoadProgress, Patience
from offload.engine.serving.server_command import Program
from offload.engine.serving.supervise import Policy
from offload.errors import LlamaCppError
from offload.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Everything but the plan. `canary_tokens` None: no canary; 0: as long as a slot."""

    program: Program
    host: str = "127.0.0.1"
    port: int = 8080
    log: Path | None = None
    extra: tuple[str, ...] = ()
    canary_tokens: int | None = None
    grace_s: float = 20.0
    policy: Policy = field(default_factory=Policy)
    patience: Patience = field(default_factory=Patience)
    state_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """Whom to tell: sentences, progress of a load or a canary, and the address once it serves."""

    say: Callable[[str], None]
    loading: Callable[[LoadProgress | None], None] = lambda _: None
    reading: Callable[[int, int], None] = lambda n_read, n_sent: None
    ready: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How serving ended: `error` is None for a clean stop. `plan` is the last one tried."""

    was_ready: bool
    plan: Plan
    error: LlamaCppError | None = None
    canary: CanaryResult | None = None
