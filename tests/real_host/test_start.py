"""What the extension adds to the start of the real WebUI."""

# Of the processor time of importing torch, which is some 2 s where 0.15 s are allowed.
OF_TORCH = 0.075


def test_the_script_the_tab_and_its_routes_add_little(host, figures):
    cost = host.ask("begin_pages")
    ours = tuple(cost[part] for part in ("script", "tab", "routes"))
    figures("processor seconds of script, tab and routes", ours)
    assert figures("to importing torch", sum(ours) / cost["torch"]) < OF_TORCH
