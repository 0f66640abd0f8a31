"""What the WebUI's Lora extension does for its own tags is done for schedules too, and static tags keep out of their way.

Right values come from a twin of the model whose weights hold the networks.
"""

import os
from dataclasses import replace

import networks
import pytest
import torch
from modules import sd_hijack, sd_unet, shared
from modules.textual_inversion import textual_inversion
from webui_host import agree, answers, evaluations

from lib_lora.formats.stream import TensorReader, write_tensors
from lib_lora.networks.boft import BOFT
from lib_lora.networks.compose import DORA_TYPES
from lib_lora.networks.full import FULL
from lib_lora.networks.glora import GLORA
from lib_lora.networks.ia3 import IA3
from lib_lora.networks.loha import LOHA
from lib_lora.networks.lora import LORA, truncated
from lib_lora.networks.oft import OFT

WORDS = ("a fox ", "")
SCHEDULE = "<lora:a:te=0.4:unet=0@0,1@1>"


def words_of(model, *texts):
    return model.cond_stage_model(list(texts))


def acts_as(host, **strengths):
    """Tell whether the last evaluation and its words are those of a twin with these networks baked in."""
    return was_with(host, evaluations(host)[-1], **strengths)


def was_with(host, evaluation, **strengths):
    twin = host.baked(**strengths)
    words = words_of(twin, *WORDS)
    return agree(evaluation[3], answers(twin, evaluation)) and agree(evaluation[2], words)


def with_word(host, name, word, vectors):
    """Put an embedding into a network file."""
    file = networks.on_disk[name]
    with TensorReader(file) as reader:
        tensors = {key: reader.read_to_copy(key) for key in reader.header.tensors}
    write_tensors(file, {**tensors, f"bundle_emb.{word}.string_to_param.*": vectors}, {})


@pytest.mark.parametrize("kind", [*DORA_TYPES[:1], IA3, OFT, BOFT, GLORA], ids=lambda k: k.id)
def test_static_tags_beside_a_network_that_reads_the_weights_go_beside_them_too(host, kind):
    host.add_network("k", 5, kind)
    host.draw("a fox <lora:b:0.5:0.7><lora:k:te=0.3:unet=0@0,1@1>")
    assert networks.loaded_networks == []
    last = evaluations(host)[-1]
    twin = host.baked(b=(0.7, 0.5), k=(1, 0.3))
    assert agree(last[3], answers(twin, last))
    assert agree(last[2], words_of(twin, *WORDS))
    for off in ({"b": (0.735, 0.5), "k": (1, 0.3)}, {"b": (0.7, 0.5), "k": (1.05, 0.3)}):
        assert not agree(last[3], answers(host.baked(**off), last))


def test_static_tags_beside_other_networks_stay_the_hosts(host):
    host.add_network("k", 5, LOHA)
    host.draw("a fox <lora:b:0.5><lora:k:te=0.3:unet=0@0,1@1>")
    assert networks.loaded_networks == [("b", 0.5)]
    assert acts_as(host, b=(0.5, 0.5), k=(1, 0.3))


def test_static_tags_stay_the_hosts_when_the_schedule_is_left_out(host):
    host.draw("a fox <lora:b:0.5><lora:c:te=0.3:unet=0@0,1@1>")
    assert networks.loaded_networks == [("b", 0.5)]
    assert acts_as(host, b=(0.5, 0.5))


@pytest.mark.parametrize("tag", ["<lyco:a:te=0.4:unet=0@0,1@1>", SCHEDULE])
def test_both_names_of_a_tag_are_schedules(host, tag):
    host.draw(f"a fox {tag}")
    assert networks.loaded_networks == []
    assert acts_as(host, a=(1, 0.4))


def test_the_other_name_of_a_static_tag_stays_the_hosts(host):
    host.draw("a fox <lyco:b:0.5>")
    assert networks.loaded_networks == [("b", 0.5)]


@pytest.mark.parametrize("ranks", ["dyn=1", "dyn=9"])
def test_dyn_takes_the_first_ranks(host, ranks):
    host.draw(f"a fox <lora:a:te=0.4:unet=0@0,1@1:{ranks}>")
    count = int(ranks.removeprefix("dyn="))
    host.networks["first"] = {
        layer_id: replace(network, tensors=truncated(network.tensors, count))
        for layer_id, network in host.networks["a"].items()
    }
    last = evaluations(host)[-1]
    assert agree(last[3], answers(host.baked(first=(1, 0.4)), last))
    assert agree(last[3], answers(host.baked(a=(1, 0.4)), last)) is (count > 2)


def test_a_missing_network_is_told_in_the_words_of_the_host(host):
    picture = host.picture("a fox <lora:c:0@0,1@1><lora:d:0@0,1@1>")
    picture.draw()
    assert "Lora not found: c, d" in picture.comments


def test_words_in_a_network_file_are_there_for_its_picture(host):
    vectors = torch.full((3, 8), 2.0, dtype=torch.float64)
    with_word(host, "a", "fox", vectors)
    picture = host.picture(f"a fox {SCHEDULE}")
    picture.draw()
    last = evaluations(host)[-1]
    twin = host.baked(a=(1, 0.4))
    assert agree(last[2], words_of(twin, *WORDS))  # which know the word now
    embedding = sd_hijack.model_hijack.embedding_db.word_embeddings["fox"]
    assert torch.equal(embedding.vec, vectors)
    assert embedding.shorthash == "a"
    assert "Loom errors" not in picture.extra_generation_params
    host.draw("a fox ")
    assert sd_hijack.model_hijack.embedding_db.word_embeddings == {}
    assert not agree(last[2], words_of(twin, *WORDS))


def test_a_word_that_the_host_has_is_not_taken_from_a_network_file(host):
    words = sd_hijack.model_hijack.embedding_db
    own = textual_inversion.create_embedding_from_data({"*": torch.zeros(3, 8)}, "fox")
    words.register_embedding(own, host.model)
    with_word(host, "a", "fox", torch.ones(3, 8).double())
    host.draw(f"a fox {SCHEDULE}")
    host.draw("a fox ")
    assert words.word_embeddings["fox"] is own


def test_the_network_that_the_option_adds_is_not_added_to_a_schedule_of_it(host):
    shared.opts.data["sd_lora"] = "a"
    host.draw(f"a fox {SCHEDULE}")
    assert networks.loaded_networks == []
    assert acts_as(host, a=(1, 0.4))
    assert shared.opts.data["sd_lora"] == "a"
    host.draw("a cat")
    assert networks.loaded_networks == [("a", 1.0)]


def test_the_network_that_the_option_adds_is_the_hosts_beside_another(host):
    shared.opts.data["sd_lora"] = "b"
    host.draw(f"a fox {SCHEDULE}")
    assert networks.loaded_networks == [("b", 1.0)]


def test_the_network_that_the_option_adds_goes_beside_the_weights_with_the_others(host):
    shared.opts.data |= {"sd_lora": "b", "loom_keep_weights": True}
    picture = host.picture("a fox <lora:a:0.4>")
    picture.draw()
    assert networks.loaded_networks == []
    assert picture.all_prompts == ["a fox <lora:a:0.4><lora:b:1.0>"]
    assert acts_as(host, a=(0.4, 0.4), b=(1, 1))


def test_what_the_host_alone_understands_stays_with_it_while_weights_are_kept(host):
    shared.opts.data["loom_keep_weights"] = True
    host.draw("a fox <lora:a:0.5:0.8:1>")
    host.networks["first"] = {
        layer_id: replace(network, tensors=truncated(network.tensors, 1))
        for layer_id, network in host.networks["a"].items()
    }
    assert networks.loaded_networks == []
    assert acts_as(host, first=(0.8, 0.5))


def test_a_file_that_was_trained_again_is_not_taken_for_the_cached_one(host):
    host.draw("a fox <lora:a:1@0,1@1>")
    before = evaluations(host)[0][2]
    host.add_network("a", 9)
    os.utime(networks.on_disk["a"], ns=(1, 1))
    host.draw("a fox <lora:a:1@0,1@1>")
    assert agree(evaluations(host)[0][2], words_of(host.baked(a=(1, 1)), *WORDS))
    assert not agree(before, words_of(host.baked(a=(1, 1)), *WORDS))


@pytest.mark.parametrize("kind", [LORA, LOHA, DORA_TYPES[0]], ids=lambda kind: kind.id)
def test_block_weights_act_beside_the_strength(host, kind):
    host.add_network("k", 5, kind)
    values = ["0.5", "0.3", *["0"] * 15]  # of BASE, IN01 and others; IN00 is not among 17
    host.draw(f"a fox <lora:k:te=0.8:unet=0@0,0.6@1:lbw={','.join(values)}>")
    own = host.networks["k"]
    for name, part in (("first", "proj_in"), ("end", "conv_out"), ("words", "fc1")):
        host.networks[name] = {key: layer for key, layer in own.items() if key.endswith(part)}
    evaluation = evaluations(host)[-1]
    right = {"first": (0.3 * 0.6, 0), "end": (0.6, 0), "words": (0, 0.5 * 0.8)}
    assert was_with(host, evaluation, **right)
    for name, (unet, te) in right.items():
        assert not was_with(host, evaluation, **{**right, name: (1.05 * unet, 1.05 * te)})


@pytest.mark.parametrize(
    ("prompt", "steps"),
    [
        ("a fox [<lora:a:0.7>:0.5]", [2, 3]),
        ("a fox [<lora:a:0.7>::2]", [0, 1]),
        ("a fox [[<lora:a:0.7>::3]:1]", [1, 2]),
        ("a fox [<lora:a:0.7>:<lora:a:0.7>:2]", [0, 1, 2, 3]),
    ],
)
def test_prompt_editing_gates_both_components(host, prompt, steps):
    host.draw(prompt)
    for index, evaluation in enumerate(evaluations(host)):
        strength = 0.7 if index in steps else 0
        twin = host.baked(a=(strength, strength))
        assert agree(evaluation[3], answers(twin, evaluation))
        assert agree(evaluation[2], words_of(twin, *WORDS))
    assert networks.loaded_networks == []


def test_editing_in_another_way_is_not_taken_for_what_is_cached(host):
    for prompt, strength in (("a fox [<lora:a:0.7>:2]", 0), ("a fox [<lora:a:0.7>::2]", 0.7)):
        host.draw(prompt)
        first = evaluations(host)[0]
        assert agree(first[2], words_of(host.baked(a=(0, strength)), *WORDS))


def test_what_networks_other_than_lora_take_of_memory_is_told_and_no_problem(host):
    host.add_network("f", 3, FULL, layers=("unet.conv_in", "unet.conv_out"))
    convolutions = (
        host.model.model.diffusion_model.input_blocks[0][0],
        host.model.model.diffusion_model.out[2],
    )
    taken = sum(module.weight.nbytes for module in convolutions) / 1e6
    picture = host.picture("a fox <lora:f:0@0,1@1>")
    host.make(picture)
    told = f"LoRA Loom takes {taken:.2f} MB of memory for this picture's networks."
    assert told in picture.comments
    assert "Loom errors" not in picture.extra_generation_params
    for tag in ("<lora:a:0@0,1@1>", "<lora:a:0@0,1@1:lbw=ALL0.5>"):
        plain = host.picture(f"a fox {tag}")
        host.make(plain)
        assert not plain.comments


@pytest.mark.parametrize("moved", [False, True])
def test_a_file_that_is_not_where_it_was(host, moved):
    """The host goes on listing it; the schedule of another LoRA acts all the same, and a moved file is found again."""
    file = networks.on_disk.pop("b")
    if moved:
        networks.on_disk["b"] = file.replace(host.folder / "moved.safetensors")
    else:
        file.unlink()
    picture = host.picture(f"a fox {SCHEDULE}<lora:b:te=0:unet=1@0,0.5@1>")
    picture.draw()
    evaluation = evaluations(host)[-1]
    assert was_with(host, evaluation, a=(1, 0.4), b=(0.5 * moved, 0))
    assert not was_with(host, evaluation, a=(1, 0.4), b=(0.5 * (not moved), 0))
    told = picture.extra_generation_params.get("Loom errors", "")
    assert ("There is no LoRA 'b'" in told) is not moved
    assert "FileNotFoundError" not in told


def test_the_hash_is_that_of_the_file_that_acts(host, monkeypatch):
    """Two files that call themselves `a`: the host then knows that alias as the one that it has read last, and forbids it."""
    monkeypatch.setitem(networks.available_network_aliases, "a", networks.available_networks["b"])
    monkeypatch.setitem(networks.forbidden_network_aliases, "a", 1)
    picture = host.picture(f"a fox {SCHEDULE}")
    picture.draw()
    assert acts_as(host, a=(1, 0.4))
    assert picture.extra_generation_params["Lora hashes"] == "a: hash-a"


@pytest.mark.parametrize("added", ["None", "b"])
def test_static_tags_stay_the_hosts_where_nothing_can_act_beside_the_weights(host, added):
    shared.opts.data |= {"sd_lora": added, "loom_keep_weights": True}
    sd_unet.current_unet = object()
    picture = host.picture("a fox <lora:a:0.4>")
    picture.draw()
    names = ["a", "b"] if added == "b" else ["a"]
    assert [name for name, *_ in networks.loaded_networks] == names
    assert picture.all_prompts == ["a fox <lora:a:0.4>" + "<lora:b:1.0>" * (added == "b")]
    assert "compiled" in picture.extra_generation_params["Loom errors"]


def test_a_file_whose_name_has_spaces_around_it(host):
    """The host's cards write it with them into the tag, where the grammar reads it without."""
    networks.on_disk["a "] = networks.on_disk.pop("a")
    networks.list_available_networks()
    picture = host.picture("a fox <lora:a :te=0.4:unet=0@0,1@1>")
    picture.draw()
    assert acts_as(host, a=(1, 0.4))
    assert "Loom errors" not in picture.extra_generation_params


def test_an_embedding_that_is_none_costs_neither_the_schedules_nor_other_words(host, caplog):
    """The host makes none of two tensors that it has no names for; a word in another file goes when the picture does."""
    vectors = torch.full((3, 8), 2.0, dtype=torch.float64)
    with_word(host, "a", "fox", vectors)
    file = networks.on_disk["b"]
    with TensorReader(file) as reader:
        tensors = {key: reader.read_to_copy(key) for key in reader.header.tensors}
    odd = {f"bundle_emb.cat.{part}": vectors for part in ("one", "two")}
    write_tensors(file, {**tensors, **odd}, {})
    picture = host.picture(f"a fox {SCHEDULE}<lora:b:te=0:unet=0@0,0@1>")
    picture.draw()
    assert acts_as(host, a=(1, 0.4))
    assert "Loom errors" not in picture.extra_generation_params
    assert any("'cat'" in message for message in caplog.messages)
    host.draw("a fox ")
    assert sd_hijack.model_hijack.embedding_db.word_embeddings == {}
