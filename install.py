"""Called by the WebUI at every start: prepares the worker's packages when they are missing and says so in one line.

Nothing of the WebUI is touched or imported, torch neither; a failure is a sentence, since everything but training works without.
"""

import io
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from lib_lora.jobs.ready import is_ready, note_ready


def main() -> str:
    """Do it and return the line."""
    if is_ready():
        return "ready"
    # Here and not above: every start would pay for what almost none needs.
    from lib_lora.errors import LoraError
    from lib_lora.jobs.environment import listed, needed, prepare

    plan = needed()
    if plan.problem:
        return plan.problem
    try:
        prepare(lambda step: None)
        note_ready(str(plan.overlay.folder) if plan.overlay else "")
    except (LoraError, OSError) as error:
        return str(error)
    if not plan.missing:
        return "ready"
    return f"prepared {listed(plan.missing)} for the worker; the WebUI's packages are as they were"


if __name__ == "__main__":
    # A folder's name may hold what the encoding of the console or of a pipe does not.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    print(f"LoRA Loom: {main()}")
