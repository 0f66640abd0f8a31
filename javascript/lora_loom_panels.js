/* What is told before a training begins: what lies in the folder of pictures, and what memory each phase will take. */
(() => {
    "use strict";
    const loom = (globalThis.loraLoom ??= {});
    const make = (...all) => loom.make(...all);
    const SHOWN = 6;

    /** Return the sizes of bytes as people read them. */
    loom.gigabytes = (bytes) =>
        bytes >= 2 ** 30
            ? `${(bytes / 2 ** 30).toFixed(1)} GB`
            : `${Math.max(1, Math.round(bytes / 2 ** 20))} MB`;

    /** Return a list of sentences, the tail of a long one folded away. */
    loom.sentences = (kind, sentences) => {
        const items = (some) =>
            make(
                "ul",
                { class: `sentences ${kind}` },
                some.map((sentence) => make("li", {}, sentence)),
            );
        if (sentences.length <= SHOWN) return sentences.length ? items(sentences) : null;
        const rest = sentences.slice(SHOWN);
        return make(
            "div",
            {},
            items(sentences.slice(0, SHOWN)),
            make("details", { class: "more" }, make("summary", {}, `${rest.length} more`), items(rest)),
        );
    };

    /** Return {element, clear, wait, show, fail}: the report on a folder of pictures. */
    loom.datasetReport = () => {
        const element = make("div", { class: "report", "aria-live": "polite" });
        return {
            element,
            clear: () => element.replaceChildren(),
            wait: () =>
                element.replaceChildren(make("p", { class: "help" }, "Looking through the pictures …")),
            fail: (error) => element.replaceChildren(make("p", { class: "wrong" }, loom.inWords(error))),
            show: ({ figures, problems, advice }) => {
                const pairs = figures.map(([label, value]) =>
                    make("div", {}, make("dt", {}, label), make("dd", {}, value)),
                );
                const parts = [
                    make("dl", { class: "figures" }, pairs),
                    loom.sentences("problem", problems),
                    loom.sentences("advice", advice),
                ];
                element.replaceChildren(...parts.filter(Boolean));
            },
        };
    };

    /** Return {element, show, fail}: the bars of the forecast, each against what is free. */
    loom.forecast = () => {
        const bars = make("div", { class: "bars" });
        const fit = make("input", { type: "checkbox", id: "loom_fit", checked: true });
        const failure = make("p", { class: "wrong", hidden: true });
        const fitting = make(
            "div",
            { class: "field switch" },
            make(
                "div",
                { class: "line" },
                fit,
                make("label", { for: "loom_fit" }, "Fit the settings to this machine"),
            ),
        );
        const choices = make("details", { class: "more", hidden: true });
        const note = make("p", { class: "help" });
        const element = make(
            "section",
            { class: "card forecast", hidden: true },
            make("h2", {}, "Memory this will take"),
            failure,
            bars,
            note,
            fitting,
            choices,
        );
        const bar = ({ label, bytes }, free, full) => {
            const over = free > 0 && bytes > free;
            const fill = make("span", {
                class: over ? "fill over" : "fill",
                style: `width:${((100 * bytes) / full).toFixed(1)}%`,
            });
            const mark =
                free > 0
                    ? make("span", { class: "free", style: `left:${((100 * free) / full).toFixed(1)}%` })
                    : null;
            return make(
                "div",
                { class: "bar" },
                make("span", { class: "label" }, label),
                make("span", { class: "track" }, fill, mark),
                make("span", { class: "value" }, loom.gigabytes(bytes)),
            );
        };
        return {
            element,
            fit,
            /** An error of the form stands beside its field once it is sent; here it only means that nothing is known yet. */
            fail: (error) => {
                element.classList.add("stale");
                failure.hidden = Boolean(error.problems?.length);
                failure.textContent = loom.inWords(error);
                element.hidden &&= failure.hidden;
            },
            show: (plan) => {
                const { phases, free } = plan;
                const full = 1.08 * Math.max(free, ...phases.map(({ bytes }) => bytes));
                element.hidden = false;
                element.classList.remove("stale");
                failure.hidden = true;
                bars.replaceChildren(...phases.map((phase) => bar(phase, free, full)));
                note.textContent = plan.note;
                choices.hidden = !plan.choices.length;
                choices.replaceChildren(
                    make(
                        "summary",
                        {},
                        `${plan.choices.length} ${plan.choices.length === 1 ? "choice" : "choices"} for this machine`,
                    ),
                    make(
                        "ul",
                        { class: "sentences advice" },
                        plan.choices.map((choice) => make("li", {}, choice)),
                    ),
                );
            },
        };
    };

    /** Return {element, show}: what stands in the way of any training, and the button that removes it. */
    loom.environmentPanel = (routes) => {
        const words = make("p", {}),
            lines = make("pre", { class: "log", hidden: true });
        const button = make(
            "button",
            { type: "button", class: "primary", onclick: () => prepare() },
            "Prepare",
        );
        const element = make(
            "section",
            { class: "card prepare", role: "status", hidden: true },
            make("h2", {}, "One thing first"),
            words,
            lines,
            make("div", { class: "actions" }, button),
        );
        const prepare = async () => {
            button.disabled = true;
            await routes.post("prepare", {}).catch((error) => (words.textContent = loom.inWords(error)));
        };
        return {
            element,
            show: ({ ready, busy, sentence, lines: told, allowed }) => {
                element.hidden = ready;
                words.textContent = sentence;
                lines.hidden = !told.length;
                lines.textContent = told.join("\n");
                lines.scrollTop = lines.scrollHeight;
                button.hidden = !allowed;
                button.disabled = busy;
                button.textContent = busy ? "Preparing …" : "Prepare";
            },
        };
    };
})();
