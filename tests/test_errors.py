"""What a message says that is accepted."""

from lib_lora.errors import NAMED, did_you_mean


def test_the_nearest_word_is_named_whatever_its_case():
    assert did_you_mean("UPER", ["Upper", "lower"]) == "Did you mean 'Upper'?"


def test_all_words_are_named_where_none_is_near():
    assert did_you_mean("x", ["two", "one"]) == "Accepted: one, two."


def test_of_very_many_words_a_sentence_names_some():
    told = did_you_mean("?", [f"{number:05}" for number in range(3000)])
    assert told.count(",") == NAMED - 1
    assert told.endswith(f"{NAMED - 1:05} and {3000 - NAMED} others.")
