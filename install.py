"""Called by the WebUI at every start: prepares the worker's packages when they are missing and says so in one line.

Nothing of the WebUI is touched or imported, torch neither; a failure is a sentence, since everything but training works without.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from lib_lora.errors import LoraError
from lib_lora.jobs.environment import listed, needed, prepare


def main() -> str:
    """Do it and return the line."""
    plan = needed()
    if plan.problem:
        return plan.problem
    if not plan.missing:
        return "ready"
    try:
        prepare(lambda step: None)
    except LoraError as error:
        return str(error)
    return f"prepared {listed(plan.missing)} for the worker; the WebUI's packages are as they were"


if __name__ == "__main__":
    print(f"LoRA Loom: {main()}")
