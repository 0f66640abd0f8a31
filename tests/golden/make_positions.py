"""Work out where every recorded evaluation stands in its pass: the numbers of `positions.json.gz`.

    python make_positions.py schedule_traces.json.gz

Reads what was recorded in the WebUI and nothing else: the list a sampler built and the level of every evaluation. The README beside
this file tells how the numbers are defined and what was seen in them.
"""

import gzip
import json
import math
import sys
from itertools import pairwise
from pathlib import Path

OUT = Path(__file__).with_name("positions.json.gz")
COLUMNS = {"level": 0, "launch": 7}


def walked(sampler, kind, built, evaluated):
    """Return the list that the sampler walked, most noise first, from what it was seen to evaluate."""
    if kind == "sigmas":
        # From where the pass started, without the end, which no step starts from.
        return built[built.index(evaluated[0]) : -1]
    if sampler == "UniPC":
        return sorted(set(evaluated), reverse=True)
    return [level for level in reversed(built) if level in evaluated]


def position(level, levels, axis):
    """Return 0 at the first level, 1 at the last, interpolated between two neighbours, clamped outside."""
    if len(levels) == 1 or level >= levels[0]:
        return 0.0
    for index, (above, below) in enumerate(pairwise(levels)):
        if above >= level > below:
            share = (axis(above) - axis(level)) / (axis(above) - axis(below))
            return (index + share) / (len(levels) - 1)
    return 1.0


def pass_of(sampler, launch, schedule, evaluated, partial):
    kind, built = schedule["kind"], schedule["values"]
    levels = walked(sampler, kind, built, evaluated)
    axis = math.log if kind == "sigmas" else float
    return {
        "sampler": sampler,
        "kind": kind,
        "built": built,
        "asked": schedule["steps_arg"],
        "launched": launch["launch_steps"],
        "partial": partial,
        "evaluated": evaluated,
        "positions": [round(position(level, levels, axis), 7) for level in evaluated],
    }


def passes_of(run):
    """Yield the launches of a run; `None` for one that evaluated nothing."""
    request = run["request"]
    for index, (launch, schedule) in enumerate(zip(run["launches"], run["schedules"], strict=True)):
        evaluated = [
            row[COLUMNS["level"]] for row in run["evals"] if row[COLUMNS["launch"]] == index
        ]
        sampler = request["sampler_name"]
        if launch["hr"]:
            sampler = request.get("hr_sampler_name", sampler)
        partial = launch["hr"] or run["mode"] == "img2img"
        yield pass_of(sampler, launch, schedule, evaluated, partial) if evaluated else None


def name_of(run):
    request = run["request"]
    parts = [run["group"], request["sampler_name"], str(request["steps"])]
    if request.get("hr_second_pass_steps"):
        parts[-1] += f"+{request['hr_second_pass_steps']}"
    if run["group"] == "scheduler":
        parts.append(request["scheduler"])
    if run["group"] == "extra_steps" and run["mode"] == "img2img":
        parts.append("img2img")
    return "/".join(parts)


def collect(runs):
    passes, names, without = [], {}, {}
    for run in runs:
        name = name_of(run)
        if name in names or name in without:
            raise ValueError(f"{name} occurs twice")
        if run.get("error"):
            without[name] = "failed in the WebUI: " + json.loads(run["error"])["errors"]
            continue
        found = list(passes_of(run))
        if not any(found):
            without[name] = "no evaluation"
            continue
        names[name] = []
        for number, one in enumerate(found, start=1):
            if one is None:
                without[f"{name}, pass {number}"] = "no evaluation"
                continue
            if one not in passes:
                passes.append(one)
            names[name].append(passes.index(one))
    return {"passes": passes, "runs": names, "without": without}


def main(traces):
    facts = collect(json.loads(gzip.decompress(Path(traces).read_bytes()))["runs"])
    text = json.dumps(facts, separators=(",", ":"))
    OUT.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
