"""What is known to fail before a child is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from offload.engine import load
from offload.engine.load_options import LoadOptions
from offload.errors import UsageError


def test_a_model_beyond_ram_is_not_put_on_virtual_cards(tmp_path: Path) -> None:
    """One line with both sizes, before the kernel has to kill anybody."""
    model = tmp_path / "huge.gguf"
    with model.open("wb") as file:
        file.truncate(8 << 40)
    with pytest.raises(UsageError, match=r"8192\.0 GiB, and .* GiB of RAM"):
        load(LoadOptions(path=str(model)), virtual=True)
