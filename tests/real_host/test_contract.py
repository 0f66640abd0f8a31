"""What is relied on in the WebUI is what the real one does: the file of the stand-in's behaviours, run in a WebUI without the extension."""

from tests.real_host.process import ROOT

CONTRACT = ROOT / "tests" / "host_contract.py"


def test_the_real_webui_does_what_the_stand_in_does(start, figures):
    raised = start(extension=False).ask("contract", file=str(CONTRACT))
    assert figures("behaviours", len(raised)) > 15
    assert {name: text for name, text in raised.items() if text} == {}
