/* The form of a training: made from the description that the server gives, checked there, told about beside its fields. */
(() => {
    "use strict";
    const loom = (globalThis.loraLoom ??= {});
    const make = (...all) => loom.make(...all);
    const STORE = "loraLoom.form", OTHER = "", PAUSE_MS = 350;
    const [BASE, FOLDER, OUT, SIZE, CAPTION] = ["model.base", "data.folder", "saving.out", "data.size", "data.caption"];

    /** Return what a field accepts, in a few characters. */
    loom.rangeText = (field) => {
        if (!field.range) return "";
        const [low, high] = field.range.map((value) => (Math.abs(value) >= 1e5 ? value.toExponential(0).replace("e+", "e") : String(value)));
        return `${low} – ${high}`;
    };

    /** Return the sizes of bytes as people read them. */
    loom.gigabytes = (bytes) => (bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(1)} GB` : `${Math.max(1, Math.round(bytes / 2 ** 20))} MB`);

    /** Call `act` once nobody has asked for it again for a moment. */
    const later = (act) => {
        let timer;
        return () => {
            clearTimeout(timer);
            timer = setTimeout(act, PAUSE_MS);
        };
    };

    /** Return {element, get, set, tell, name, isChanged, mark}: one field with its label, its help and a place for what is wrong with it. */
    const makeField = (field, changed) => {
        const id = `loom_${field.name.replace(".", "_")}`;
        const common = { id, name: field.name, "aria-describedby": `${id}_help ${id}_wrong`, autocomplete: "off", spellcheck: "false" };
        const input =
            field.kind === "choice"
                ? make("select", common, field.choices.map((choice) => make("option", { value: choice }, choice)))
                : field.kind === "lines"
                  ? make("textarea", { ...common, rows: 3 })
                  : field.kind === "switch"
                    ? make("input", { ...common, type: "checkbox" })
                    : make("input", { ...common, type: "text", inputmode: { integer: "numeric", number: "decimal" }[field.kind] ?? "text", placeholder: field.placeholder });
        const wrong = make("p", { class: "wrong", id: `${id}_wrong`, role: "alert", hidden: true });
        const label = make("label", { for: id }, field.label);
        const range = loom.rangeText(field);
        const chosen = make("p", { class: "chosen", hidden: true });
        const help = make("p", { class: "help", id: `${id}_help` }, field.help, range ? make("span", { class: "range" }, range) : null);
        const element = make("div", { class: `field ${field.kind}` }, ...(field.kind === "switch" ? [make("div", { class: "line" }, input, label)] : [label, input]), help, chosen, wrong);
        // What belongs to this training alone has nothing that is usual.
        let usual = field.own ? null : field.default;
        const api = {
            name: field.name,
            element,
            input,
            get: () => (field.kind === "switch" ? String(input.checked) : input.value.trim()),
            set: (text) => {
                if (field.kind === "switch") input.checked = text === "true";
                else input.value = text;
                api.mark();
            },
            tell: (sentence) => {
                wrong.textContent = sentence ?? "";
                wrong.hidden = !sentence;
                input.setAttribute("aria-invalid", String(Boolean(sentence)));
            },
            /** Say that this machine gets another value. */
            choose: (value) => {
                chosen.hidden = value === undefined || value === api.get();
                chosen.textContent = `On this machine: ${{ true: "on", false: "off" }[value] ?? value}`;
            },
            usually: (text) => {
                usual = text;
                api.mark();
            },
            isChanged: () => usual !== null && api.get() !== usual,
            mark: () => element.classList.toggle("changed", api.isChanged()),
        };
        api.set(field.default);
        input.addEventListener(field.kind === "switch" || field.kind === "choice" ? "change" : "input", () => {
            api.tell(null);
            api.mark();
            changed(api);
        });
        return api;
    };

    /** The base model: those that the host knows, the loaded one first, and where it may be named any other file. */
    const makeBase = (described, page, changed) => {
        const other = make("input", { type: "text", class: "other", "aria-label": "Checkpoint file", placeholder: "/path/to/model.safetensors", spellcheck: "false", hidden: true });
        let bases = page.bases;
        const options = () => [
            ...bases.map((base) => make("option", { value: base.file }, base.loaded ? `${base.name} (in use)` : base.name)),
            ...(page.names_files ? [make("option", { value: OTHER }, "Another file …")] : []),
        ];
        const field = makeField({ ...described, own: true, kind: "choice", choices: [], default: "" }, changed);
        field.input.replaceChildren(...options());
        field.input.after(other);
        const show = () => (other.hidden = field.input.value !== OTHER || !page.names_files);
        field.input.addEventListener("change", show);
        other.addEventListener("input", () => {
            field.tell(null);
            changed(field);
        });
        field.size = () => bases.find((base) => base.file === field.get())?.size;
        field.get = () => (other.hidden ? field.input.value : other.value.trim());
        field.set = (file) => {
            const known = bases.some((base) => base.file === file);
            if (known) field.input.value = file;
            else if (file && page.names_files) [field.input.value, other.value] = [OTHER, file];
            else field.input.selectedIndex = 0;
            show();
        };
        /** Take what the host has now; who had the one in use chosen stays with it. */
        field.offer = (now) => {
            const file = field.get(), followed = file === bases[0]?.file;
            bases = now;
            field.input.replaceChildren(...options());
            field.set(followed ? "" : file);
            return followed;
        };
        field.set("");
        return field;
    };

    /** Build the form. started(run): called with the id of a run that was put into the queue. */
    loom.trainForm = (routes, page, started) => {
        const fields = new Map();
        const add = (field) => {
            fields.set(field.name, field);
            return field.element;
        };
        const { own, basic, groups } = page.form;
        const forecast = loom.forecast(), report = loom.datasetReport();
        const verdict = make("p", { class: "verdict", role: "status" });
        const failure = make("p", { class: "wrong", role: "alert", hidden: true });
        let family = "";

        const settings = () => Object.fromEntries([...fields.values()].map((field) => [field.name, field.get()]));
        const fit = forecast.fit;
        const asked = () => ({ settings: settings(), fit: fit.checked });
        const foreseen = (plan) => {
            forecast.show(plan);
            meet(plan.family);
            verdict.textContent = plan.verdict;
            verdict.classList.toggle("over", !plan.fits);
            for (const field of fields.values()) field.choose(plan.chosen[field.name]);
        };
        const remember = () => localStorage.setItem(STORE, JSON.stringify({ ...settings(), preset: preset.value, fit: fit.checked, family }));
        const say = (problems) => {
            for (const field of fields.values()) field.tell(null);
            let first = null;
            for (const [name, sentence] of problems) {
                const field = fields.get(name) ?? fields.get(BASE);
                field.tell(sentence);
                field.element.closest("details")?.setAttribute("open", "");
                first ??= field;
            }
            first?.input.focus();
        };

        let lookedAt = "";
        const look = later(async () => {
            const asked = { folder: fields.get(FOLDER).get(), size: fields.get(SIZE).get(), caption: fields.get(CAPTION).get() };
            if (!asked.folder || JSON.stringify(asked) === lookedAt) return;
            lookedAt = JSON.stringify(asked);
            report.wait();
            await routes.post("dataset", asked).then(report.show, (error) => report.fail(error.message));
        });
        const foresee = later(() => routes.post("plan", asked()).then(foreseen, (error) => forecast.fail(error)));
        const changed = (field) => {
            remember();
            if (field.name === BASE) adopt(false);
            if ([FOLDER, SIZE, CAPTION].includes(field.name)) look();
            if (field.name !== OUT) foresee();
            count();
        };

        const preset = make("select", { id: "loom_preset" }, page.presets.map(({ id, label }) => make("option", { value: id }, label)));
        const presetHelp = make("p", { class: "help" });
        const usual = () => {
            const chosen = page.presets.find(({ id }) => id === preset.value);
            const size = fields.get(BASE).size();
            return { ...defaults, ...chosen?.settings[family], ...(size ? { [SIZE]: String(size) } : {}) };
        };
        /** Take the values of the preset; `all`, or only where a field still has what was usual before. */
        const adopt = (all) => {
            const texts = usual();
            presetHelp.textContent = page.presets.find(({ id }) => id === preset.value)?.help ?? "";
            for (const field of fields.values()) {
                if ([BASE, FOLDER, OUT, CAPTION, "samples.prompts"].includes(field.name)) continue;
                const untouched = !field.isChanged();
                field.usually(texts[field.name]);
                if (all || untouched) field.set(texts[field.name]);
            }
            count();
        };
        /** Learn of which family the base model is. */
        const meet = (now) => {
            if (now === family) return;
            family = now;
            adopt(false);
            foresee();
        };
        fit.addEventListener("change", () => {
            remember();
            foresee();
        });
        preset.addEventListener("change", () => {
            adopt(true);
            say([]);
            remember();
            look();
            foresee();
        });

        const groupElements = groups.map((group) => {
            const changes = make("span", { class: "changes" });
            const element = make(
                "details",
                { class: "group" },
                make("summary", {}, make("span", { class: "name" }, group.label), make("span", { class: "help" }, group.help), changes),
                make("div", { class: "grid" }, group.fields.map((field) => add(makeField(field, changed))))
            );
            return { element, changes, names: group.fields.map(({ name }) => name) };
        });
        const count = () => {
            for (const { changes, names } of groupElements) {
                const number = names.filter((name) => fields.get(name).isChanged()).length;
                changes.textContent = number ? `${number} changed` : "";
            }
        };

        const start = make("button", { type: "submit", class: "primary" }, "Start training");
        const where = make("p", { class: "help", title: page.network_folder }, `Goes to ${page.network_folder}`);
        const element = make(
            "form",
            { class: "form", novalidate: true, "aria-label": "New training" },
            make(
                "section",
                { class: "card" },
                make("h2", {}, "What to learn"),
                add(makeField({ ...own.folder, own: true, kind: "text", placeholder: page.names_files ? "/path/to/pictures" : "a folder's name" }, changed)),
                report.element,
                make(
                    "div",
                    { class: "grid" },
                    add(makeField({ ...own.out, own: true, kind: "text", label: "Name", help: "What prompts will call it.", placeholder: "my-style" }, changed)),
                    add(makeBase(own.base, page, changed))
                )
            ),
            make(
                "section",
                { class: "card" },
                make("h2", {}, "How to learn it"),
                make("div", { class: "field preset" }, make("label", { for: "loom_preset" }, "Preset"), preset, presetHelp),
                make("div", { class: "grid" }, basic.map((field) => add(makeField(field, changed)))),
                groupElements.map(({ element }) => element)
            ),
            make(
                "section",
                { class: "card begin" },
                failure,
                make("div", { class: "actions" }, start, verdict),
                where
            )
        );
        fields.get(OUT).element.querySelector(".help").textContent = "What prompts will call it.";

        const defaults = Object.fromEntries([...fields.values()].map((field) => [field.name, field.get()]));
        const restore = () => {
            let stored = {};
            try {
                stored = JSON.parse(localStorage.getItem(STORE) ?? "{}");
            } catch {
                localStorage.removeItem(STORE);
            }
            fit.checked = stored.fit ?? true;
            family = stored.family ?? "";
            if (page.presets.some(({ id }) => id === stored.preset)) preset.value = stored.preset;
            adopt(true);
            for (const field of fields.values()) if (typeof stored[field.name] === "string") field.set(stored[field.name]);
            count();
        };
        const refresh = async () => {
            const { bases } = await routes.get("bases");
            if (fields.get(BASE).offer(bases)) foresee();
        };
        restore();
        look();
        foresee();

        element.addEventListener("submit", async (event) => {
            event.preventDefault();
            start.disabled = true;
            failure.hidden = true;
            try {
                const { run } = await routes.post("runs", asked());
                say([]);
                started(run);
            } catch (error) {
                say(error.problems ?? []);
                failure.textContent = error.problems?.length ? `${error.problems.length === 1 ? "One field needs" : `${error.problems.length} fields need`} another look.` : error.message;
                failure.hidden = false;
            }
            start.disabled = false;
        });
        return { element, memory: forecast.element, refresh, show: (state) => (start.textContent = state.runs.some((run) => run.active) ? "Add to the queue" : "Start training") };
    };
})();
