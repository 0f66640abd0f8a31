/* The pictures that a network draws while it is in training. */
(() => {
    "use strict";
    const loom = (globalThis.loraLoom ??= {});
    const make = (...all) => loom.make(...all);

    /** The pictures drawn on the way: a row for each prompt, the newest first. A click shows one at its full size. */
    loom.gallery = (routes) => {
        const shown = new Set(),
            strips = new Map();
        const large = make("dialog", { class: "large", onclick: () => large.close() });
        const rows = make("div", { class: "rows" });
        const element = make(
            "div",
            { class: "samples", hidden: true },
            make("h3", {}, "Samples"),
            rows,
            large,
        );
        const open = (picture, caption) => {
            large.replaceChildren(
                make("img", { src: picture.src, alt: picture.alt }),
                make("p", {}, caption),
            );
            large.showModal();
        };
        const stripOf = (prompt) => {
            if (!strips.has(prompt)) {
                strips.set(prompt, make("div", { class: "strip" }));
                rows.append(make("p", { class: "help" }, prompt), strips.get(prompt));
            }
            return strips.get(prompt);
        };
        const add = async (run, { step, name, prompt }) => {
            shown.add(name);
            const words = `step ${step}`;
            const picture = make("img", { alt: `${prompt} after ${step} steps`, loading: "lazy" });
            stripOf(prompt).prepend(
                make(
                    "button",
                    { type: "button", class: "sample", onclick: () => open(picture, `${words} · ${prompt}`) },
                    picture,
                    make("span", {}, words),
                ),
            );
            picture.src = await routes
                .picture(`runs/${encodeURIComponent(run)}/samples/${encodeURIComponent(name)}`)
                .catch(() => "");
        };
        return {
            element,
            clear: () => {
                for (const each of rows.querySelectorAll("img")) URL.revokeObjectURL(each.src);
                shown.clear();
                strips.clear();
                rows.replaceChildren();
                element.hidden = true;
            },
            show: (run, samples) => {
                for (const sample of samples) if (!shown.has(sample.name)) add(run, sample);
                element.hidden = !shown.size;
            },
        };
    };
})();
