"""Starts the WebUI as its own launcher does, but for the web server, and answers what the tests ask.

    python main.py DEFAULT_CONFIGURATION [flags of launch.py]

Runs in the WebUI's interpreter with its checkout as the working directory. One JSON object a line comes on stdin, one answer a line goes to
stdout; whatever the WebUI prints goes to stderr. DEFAULT_CONFIGURATION is the YAML of checkpoints that have none beside them: the
WebUI guesses Stable Diffusion 1.5, of whose widths a small model is not.
"""

import json
import os
import sys
from pathlib import Path

from cost import count_our_script, counted


def start(configuration, flags):
    """Import and initialise all that the launcher does before it serves."""
    sys.argv = ["launch.py", *flags]
    sys.path.insert(0, str(Path.cwd()))
    with counted("torch"):
        import torch  # noqa: F401
    import webui  # noqa: F401
    from modules import initialize, sd_models_config

    sd_models_config.config_default = configuration
    count_our_script()
    initialize.initialize()


def main():
    configuration, *flags = sys.argv[1:]
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    start(configuration, flags)
    from requests_of_tests import Requests

    requests = Requests()
    for line in sys.stdin:
        asked = json.loads(line)
        answer = getattr(requests, asked.pop("do"))(**asked)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    # Without waiting for the threads of what was imported.
    os._exit(0)


main()
