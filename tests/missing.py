"""What happens to a test where a part of llama.cpp is not here?"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Skip the test, or fail it where everything has to be there (OFFLOAD_REQUIRE_LLAMA=1)."""
    if os.environ.get("OFFLOAD_REQUIRE_LLAMA") == "1":
        pytest.fail(f"OFFLOAD_REQUIRE_LLAMA=1, but {what}")
    pytest.skip(what)
