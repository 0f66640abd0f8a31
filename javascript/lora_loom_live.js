/* The view of the runs: which there are, and the one that is looked at. All of it comes from the server, nothing is kept here. */
(() => {
    "use strict";
    const loom = (globalThis.loraLoom ??= {});
    const make = (...all) => loom.make(...all);

    /** Return {element, wanted, show, choose, wake}. wanted: what is to be asked of the server; wake: asks it at once. */
    loom.liveView = (routes, memory) => {
        const environment = loom.environmentPanel(routes);
        const owner = make("p", { class: "owner", role: "status", hidden: true });
        const list = make("ul", { class: "runs", "aria-label": "Runs" });
        const listBox = make("section", { class: "card", hidden: true }, make("h2", {}, "Runs"), list);
        const empty = make(
            "section",
            { class: "card empty" },
            make("h2", {}, "Nothing is being trained"),
            make(
                "ol",
                {},
                [
                    "Name a folder of 10 to 30 pictures.",
                    "Give the LoRA a name.",
                    "Start. You can close this page: the training goes on.",
                ].map((line) => make("li", {}, line)),
            ),
        );
        const view = { wake: () => {} };
        const panel = loom.runPanel(routes, () => view.wake());
        panel.element.hidden = true;
        let chosen = "",
            seen = 0;

        const choose = (run) => {
            if (run !== chosen) [chosen, seen] = [run, 0];
            view.wake();
        };
        const item = (run) =>
            make(
                "li",
                {},
                make(
                    "button",
                    {
                        type: "button",
                        "aria-current": run.id === chosen ? "true" : false,
                        onclick: () => choose(run.id),
                    },
                    make("span", { class: "name" }, run.name),
                    make("span", { class: "when" }, run.when),
                    make(
                        "span",
                        { class: `status ${run.status}` },
                        run.training && run.total
                            ? `${Math.floor((100 * run.step) / run.total)} %`
                            : (loom.statusWords[run.status] ?? run.status),
                    ),
                ),
            );
        return Object.assign(view, {
            element: make(
                "div",
                { class: "live" },
                environment.element,
                owner,
                empty,
                panel.element,
                memory,
                listBox,
            ),
            wanted: () => ({ run: chosen, after: seen }),
            choose,
            /** asked: what `wanted` was when the state was asked for; another run may have been chosen since. */
            show: (state, asked) => {
                environment.show(state.environment);
                owner.textContent = state.owner;
                owner.hidden = !state.owner;
                empty.hidden = Boolean(state.runs.length);
                listBox.hidden = state.runs.length < 2;
                if (state.run && asked.run === chosen) {
                    [chosen, seen] = [state.run.id, state.run.seq];
                    panel.show(state.run);
                }
                panel.element.hidden = !state.run;
                const focused = document.activeElement?.closest?.("ul.runs li");
                const place = focused ? [...list.children].indexOf(focused) : -1;
                list.replaceChildren(...state.runs.map(item));
                if (place >= 0) list.children[place]?.firstChild.focus();
            },
        });
    };
})();
