"""`schedule`: the strengths that a prompt asks for, told without a model."""

import json

from lib_lora.cli.main import main

PROMPT = "a fox <lora:ink:0@0,1@1> <lora:fur:0.8:stop=1>"


def test_strengths_at_every_evaluation(capsys):
    assert main(["schedule", PROMPT, "--steps", "3", "--sampler", "Heun", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["loras"] == [
        {"name": "ink", "tag": "<lora:ink:0@0,1@1>", "curve": "0@0,1@1"},
        {"name": "fur", "tag": "<lora:fur:0.8:stop=1>", "curve": "0.8"},
    ]
    assert report["steps"] == [
        {"evaluation": index, "step": step, "progress": step / 2, "strengths": strengths}
        for index, (step, strengths) in enumerate(
            [
                (0.0, {"ink": 0.0, "fur": 0.8}),
                (1.0, {"ink": 0.5, "fur": 0.0}),
                (1.0, {"ink": 0.5, "fur": 0.0}),
                (2.0, {"ink": 1.0, "fur": 0.0}),
                (2.0, {"ink": 1.0, "fur": 0.0}),
            ]
        )
    ]


def test_a_table_for_people(capsys):
    assert main(["schedule", PROMPT, "--steps", "2"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["step", "progress", "ink", "fur"],
        ["0", "0.000", "0.000", "0.800"],
        ["1", "1.000", "1.000", "0.000"],
    ]


def test_a_bad_tag_fails_with_its_sentence(capsys):
    assert main(["schedule", "a <lora:ink:x>", "--steps", "2"]) == 1
    assert capsys.readouterr().err == (
        "<lora:ink:x> is left out: column 13: expected a number or keyframes such as 0@0,1@0.5.\n"
    )
