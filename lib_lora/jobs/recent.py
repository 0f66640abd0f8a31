"""Which runs may be at work, told from the times of their files: a host's start asks this, and imports the rest only where it must."""

from __future__ import annotations

import time
from pathlib import Path

RECENT_SECONDS = 24 * 3600


def recent_runs(runs: Path) -> list[Path]:
    """List the run folders whose worker has said anything lately, as one at work does every few seconds; no event is read for it."""
    since = time.time() - RECENT_SECONDS
    return [file.parent for file in runs.glob("*/events.jsonl") if file.stat().st_mtime > since]
