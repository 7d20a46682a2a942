"""Which build of llama.cpp is an estimate for, and what do builds do differently?

A build is the number of its release tag (b11434 is 11434). A few changes of graphs or
allocation show in compute buffers between the oldest and the newest build this program
was measured against; a build counts as the nearest of those on its side of each change.
"""

from __future__ import annotations

from typing import Final

OLDEST_BUILD: Final = 11312
"""What llama-cpp-python 0.3.36 embeds (its changelog: commit 0c1e57098)."""

NEWEST_BUILD: Final = 11434

_STATES_GATHERED_ONCE: Final = 11378
"""`build_rs` (src/llama-graph.cpp) gathers all states at once; b11368 did not yet."""

_MIXED_BATCHES: Final = 11400
"""`build_inp_embd` has a third branch, for batches of tokens and embeddings (PR 29622)."""

UNSAID_BUILD_SLACK_BYTES: Final = 256 << 20
"""What an older build may need beyond the estimate when nobody said which build will run."""


def pools_by_cell(build: int) -> bool:
    """Whether an indexer that scores pools of tokens keeps their keys beside those of tokens.

    When that came between the oldest and the newest build is not known here.
    """
    return build >= NEWEST_BUILD


def gathers_states_once(build: int) -> bool:
    """Whether recurrent layers read all states in one operation."""
    return build >= _STATES_GATHERED_ONCE


def mixes_batches(build: int) -> bool:
    """Whether graphs have a branch for batches of both tokens and embeddings."""
    return build >= _MIXED_BATCHES
