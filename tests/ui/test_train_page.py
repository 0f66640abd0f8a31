"""The Train page's place in Gradio, whichever version it is, and the secret that its routes ask for."""

import gradio as gr
import pytest

from lib_lora.ui.train_page import TOKEN_FILE, page_token, train_place


def html_of(blocks):
    components = blocks.get_config_file()["components"]
    return [each["props"]["value"] for each in components if each["type"] == "html"]


def test_the_tab_is_one_element_that_carries_the_token():
    html = train_place('a"><script>').value
    assert 'id="lora_loom_train"' in html
    assert "<script>" not in html


def test_the_tab_can_stand_among_those_of_a_host():
    """As the WebUI does: made on its own, then rendered into a tab of another page."""
    tab = train_place("token")
    with gr.Blocks() as page, gr.Tabs(), gr.TabItem("LoRA Loom", id="lora_loom"):
        tab.render()
    (html,) = html_of(page)
    assert 'data-token="token"' in html


def test_a_token_is_secret_and_outlives_the_process(tmp_path):
    runs = tmp_path / "runs"
    token = page_token(runs)
    assert len(token) >= 40
    assert page_token(runs) == token
    assert (runs / TOKEN_FILE).stat().st_mode & 0o077 == 0
    assert page_token(tmp_path / "others") != token


@pytest.mark.parametrize("left", ["", "\n"])
def test_an_empty_token_is_made_anew(tmp_path, left):
    (tmp_path / TOKEN_FILE).write_text(left)
    assert len(page_token(tmp_path)) >= 40
