"""A saved plan read back: the file `offload plan -o json` wrote, as a `Launch`."""

from __future__ import annotations

import json
import sys
from typing import Final

from offload.emit import Launch
from offload.errors import UsageError

_PLAN_MAX_BYTES: Final = 64 << 20


def read_launch(path: str) -> Launch:
    """Read a plan's launch settings from a file, or from stdin for `-`.

    Raises UsageError when the file cannot be read or is not a plan of schema version 1.
    """
    try:
        if path == "-":
            text = sys.stdin.read(_PLAN_MAX_BYTES)
        else:
            with open(path, encoding="utf-8") as file:
                text = file.read(_PLAN_MAX_BYTES)
        data = json.loads(text)
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}; give a plan saved with -o json"
        ) from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: not JSON; write it with offload plan MODEL -o json") from None
    if not isinstance(data, dict) or data.get("schema_version") != 1:
        raise UsageError(f"{path}: not a plan of schema version 1; write it again")
    return Launch.from_json(data.get("launch"))
