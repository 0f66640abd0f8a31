/* The form of a training: made from the description that the server gives, checked there, told about beside its fields. */
(() => {
    "use strict";
    const loom = (globalThis.loraLoom ??= {});
    const make = (...all) => loom.make(...all);
    const STORE = "loraLoom.form";
    const PAUSE_MS = 350;
    const BASE = "model.base";
    const FOLDER = "data.folder";
    const OUT = "saving.out";
    const SIZE = "data.size";
    const CAPTION = "data.caption";
    const OF_THIS_TRAINING = [CAPTION, "samples.prompts"];

    /** Call `act` once nobody has asked for it again for a moment. */
    const later = (act) => {
        let timer;
        return () => {
            clearTimeout(timer);
            timer = setTimeout(act, PAUSE_MS);
        };
    };

    /** Return what asks and hands over the answer, unless it was asked again, or told to forget, before that came. */
    loom.latest = (show, fail) => {
        let asked = 0;
        const unlessLate = (act) => {
            const mine = ++asked;
            return [(told) => mine === asked && act(told), (error) => mine === asked && fail(error)];
        };
        return {
            ask: (answer) => answer.then(...unlessLate(show)),
            forget: () => asked++,
        };
    };

    /** Build the fields in their groups. Return the map of them, and what holds them. */
    const buildFields = (page, changed) => {
        const { own, basic, groups } = page.form;
        const fields = new Map();
        const add = (field) => {
            fields.set(field.name, field);
            return field.element;
        };
        const text = (described, more) =>
            add(loom.makeField({ ...described, own: true, kind: "text", ...more }, changed));
        const several = (some) =>
            some.map((each) =>
                add(loom.makeField({ ...each, own: OF_THIS_TRAINING.includes(each.name) }, changed)),
            );
        const folded = groups.map((group) => {
            const changes = make("span", { class: "changes" });
            const element = make(
                "details",
                { class: "group" },
                make(
                    "summary",
                    {},
                    make("span", { class: "name" }, group.label),
                    make("span", { class: "help" }, group.help),
                    changes,
                ),
                make("div", { class: "grid" }, several(group.fields)),
            );
            return { element, changes, names: group.fields.map(({ name }) => name) };
        });
        const folder = page.names_files ? "/path/to/pictures" : "a folder's name";
        const name = { label: "Name", help: "What prompts will call it.", placeholder: "my-style" };
        return {
            fields,
            folder: text(own.folder, { placeholder: folder }),
            whatAndOn: make(
                "div",
                { class: "grid" },
                text(own.out, name),
                add(loom.makeBase(own.base, page, changed)),
            ),
            basic: make("div", { class: "grid" }, several(basic)),
            groups: folded.map(({ element }) => element),
            /** Say at each group how many of its fields are not as usual. */
            count: () => {
                for (const { changes, names } of folded) {
                    const number = names.filter((each) => fields.get(each).isChanged()).length;
                    changes.textContent = number ? `${number} changed` : "";
                }
            },
        };
    };

    /** The presets, and what is usual with the chosen one for a family of base models. */
    const makePresets = (page, built, changed) => {
        const { fields } = built;
        const defaults = Object.fromEntries([...fields.values()].map((field) => [field.name, field.get()]));
        const input = make(
            "select",
            { id: "loom_preset" },
            page.presets.map(({ id, label }) => make("option", { value: id }, label)),
        );
        const help = make("p", { class: "help" });
        const label = make("label", { for: "loom_preset" }, "Preset");
        const presets = {
            element: make("div", { class: "field preset" }, label, input, help),
            family: "",
            get: () => input.value,
            set: (name) => {
                if (page.presets.some(({ id }) => id === name)) input.value = name;
            },
            /** Take the values of the preset; `all`, or only where a field still has what was usual before. */
            adopt: (all) => {
                const chosen = page.presets.find(({ id }) => id === input.value);
                const size = fields.get(BASE).size();
                const texts = {
                    ...defaults,
                    ...chosen.settings[presets.family],
                    ...(size && { [SIZE]: String(size) }),
                };
                help.textContent = chosen.help;
                for (const field of fields.values()) {
                    if (field.isOwn()) continue;
                    const untouched = !field.isChanged();
                    field.usually(texts[field.name]);
                    if (all || untouched) field.set(texts[field.name]);
                }
                built.count();
            },
        };
        input.addEventListener("change", () => {
            presets.adopt(true);
            changed();
        });
        return presets;
    };

    /** Return what the browser kept of a form that was filled in; nothing where it refuses, or where it is no form. */
    loom.keptForm = () => {
        try {
            const kept = JSON.parse(localStorage.getItem(STORE));
            return kept instanceof Object ? kept : {};
        } catch {
            return {};
        }
    };

    /** Have the browser keep a form; where it is full or refuses, the form works all the same. */
    loom.keepForm = (filled) => {
        try {
            localStorage.setItem(STORE, JSON.stringify(filled));
        } catch {
            // Nothing is lost but that a reload begins with an empty form.
        }
    };

    /** Put problems beside their fields, and the cursor into the first of them. */
    const sayProblems = (fields, problems) => {
        for (const field of fields.values()) field.tell(null);
        for (const [name, sentence] of problems) {
            const field = fields.get(name) ?? fields.get(BASE);
            field.tell(sentence);
            field.element.closest("details")?.setAttribute("open", "");
        }
        const first =
            problems.length &&
            [...fields.values()].find(({ input }) => input.getAttribute("aria-invalid") === "true");
        if (first) first.input.focus();
    };

    /** Return what stands at the button: the sentences themselves stand beside their fields. */
    const inShort = (error) => {
        const number = error.problems?.length;
        if (!number) return loom.inWords(error);
        return number === 1 ? "One field needs another look." : `${number} fields need another look.`;
    };

    /** Build the form. started(run): called with the id of a run that was put into the queue. */
    loom.trainForm = (routes, page, started) => {
        const forecast = loom.forecast();
        const report = loom.datasetReport();
        const built = buildFields(page, (field) => changed(field));
        const { fields } = built;
        const presets = makePresets(page, built, () => {
            sayProblems(fields, []);
            remember();
            look();
            foresee();
        });
        const verdict = make("p", { class: "verdict", role: "status" });
        const failure = make("p", { class: "wrong", role: "alert", hidden: true });
        const start = make("button", { type: "submit", class: "primary" }, "Start training");
        const where = `Goes to ${page.network_folder}`;
        const element = make(
            "form",
            { class: "form", novalidate: true, "aria-label": "New training" },
            make(
                "section",
                { class: "card" },
                make("h2", {}, "What to learn"),
                built.folder,
                report.element,
                built.whatAndOn,
            ),
            make(
                "section",
                { class: "card" },
                make("h2", {}, "How to learn it"),
                presets.element,
                built.basic,
                built.groups,
            ),
            make(
                "section",
                { class: "card begin" },
                failure,
                make("div", { class: "actions" }, start, verdict),
                make("p", { class: "help", title: where }, where),
            ),
        );

        const settings = () =>
            Object.fromEntries([...fields.values()].map((field) => [field.name, field.get()]));
        const asked = () => ({ settings: settings(), fit: forecast.fit.checked });
        const remember = () => {
            const { family } = presets;
            const kept = { ...settings(), preset: presets.get(), fit: forecast.fit.checked, family };
            loom.keepForm(kept);
        };
        const restore = () => {
            const kept = loom.keptForm();
            forecast.fit.checked = kept.fit ?? true;
            presets.family = kept.family ?? "";
            presets.set(kept.preset);
            presets.adopt(true);
            for (const field of fields.values()) {
                if (typeof kept[field.name] === "string") field.set(kept[field.name]);
            }
            built.count();
        };

        let lookedAt = "";
        const reported = loom.latest(report.show, report.fail);
        const look = later(() => {
            const [folder, size, caption] = [FOLDER, SIZE, CAPTION].map((name) => fields.get(name).get());
            const question = { folder, size, caption };
            if (JSON.stringify(question) === lookedAt) return;
            lookedAt = JSON.stringify(question);
            reported.forget();
            if (!folder) return report.clear();
            report.wait();
            reported.ask(routes.post("dataset", question));
        });
        const foreseen = (plan) => {
            forecast.show(plan);
            verdict.textContent = plan.verdict;
            verdict.classList.toggle("over", !plan.fits);
            for (const field of fields.values()) field.choose(plan.chosen[field.name]);
            if (plan.family === presets.family) return;
            // What is usual depends on the family, which is known only now.
            presets.family = plan.family;
            presets.adopt(false);
            foresee();
        };
        const forecasts = loom.latest(foreseen, (error) => {
            forecast.fail(error);
            verdict.textContent = "";
        });
        const foresee = later(() => forecasts.ask(routes.post("plan", asked())));
        const changed = (field) => {
            remember();
            if (field.name === BASE) presets.adopt(false);
            if ([FOLDER, SIZE, CAPTION].includes(field.name)) look();
            if (field.name !== OUT) foresee();
            built.count();
        };
        forecast.fit.addEventListener("change", () => {
            remember();
            foresee();
        });
        element.addEventListener("submit", async (event) => {
            event.preventDefault();
            start.disabled = true;
            failure.hidden = true;
            try {
                const { run } = await routes.post("runs", asked());
                sayProblems(fields, []);
                started(run);
            } catch (error) {
                sayProblems(fields, error.problems ?? []);
                failure.textContent = inShort(error);
                failure.hidden = false;
            }
            start.disabled = false;
        });
        restore();
        look();
        foresee();
        return {
            element,
            memory: forecast.element,
            /** Take what base models the host has now. */
            refresh: async () => {
                const { bases } = await routes.get("bases");
                if (fields.get(BASE).offer(bases)) foresee();
            },
            show: (state) => {
                start.textContent = state.runs.some((run) => run.active)
                    ? "Add to the queue"
                    : "Start training";
            },
        };
    };
})();
