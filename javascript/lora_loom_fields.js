/* The fields of a form, each with its label, its help, and a place for what is wrong with it. */
(() => {
    "use strict";
    const loom = (globalThis.loraLoom ??= {});
    const make = (...all) => loom.make(...all);
    const OTHER = "";

    /** Return what a field accepts, in a few characters. */
    loom.rangeText = (field) => {
        if (!field.range) return "";
        const [low, high] = field.range.map((value) =>
            Math.abs(value) >= 1e5 ? value.toExponential(0).replace("e+", "e") : String(value),
        );
        return `${low} – ${high}`;
    };

    const inputOf = (field, common) => {
        if (field.kind === "choice")
            return make(
                "select",
                common,
                field.choices.map((choice) => make("option", { value: choice }, choice)),
            );
        if (field.kind === "lines") return make("textarea", { ...common, rows: 3 });
        if (field.kind === "switch") return make("input", { ...common, type: "checkbox" });
        const inputmode = { integer: "numeric", number: "decimal" }[field.kind] ?? "text";
        return make("input", { ...common, type: "text", inputmode, placeholder: field.placeholder });
    };

    /** Return the parts of a field: its input, the whole, and the places for what a machine chooses and for what is wrong. */
    const partsOf = (field) => {
        const id = `loom_${field.name.replace(".", "_")}`;
        const described = `${id}_help ${id}_wrong`;
        const input = inputOf(field, {
            id,
            name: field.name,
            "aria-describedby": described,
            autocomplete: "off",
            spellcheck: "false",
        });
        const label = make("label", { for: id }, field.label);
        const range = loom.rangeText(field);
        const help = make(
            "p",
            { class: "help", id: `${id}_help` },
            field.help,
            range ? make("span", { class: "range" }, range) : null,
        );
        const chosen = make("p", { class: "chosen", hidden: true });
        const wrong = make("p", { class: "wrong", id: `${id}_wrong`, role: "alert", hidden: true });
        const named =
            field.kind === "switch" ? [make("div", { class: "line" }, input, label)] : [label, input];
        const element = make("div", { class: `field ${field.kind}` }, named, help, chosen, wrong);
        return { input, element, chosen, wrong };
    };

    /** Make one field. own: it belongs to this training alone, and nothing is usual for it; changed: called with the field. */
    loom.makeField = (described, changed) => {
        const { input, element, chosen, wrong } = partsOf(described);
        const isSwitch = described.kind === "switch";
        let usual = described.own ? null : described.default;
        const field = {
            name: described.name,
            element,
            input,
            get: () => (isSwitch ? String(input.checked) : input.value.trim()),
            set: (text) => {
                if (isSwitch) input.checked = text === "true";
                else if (described.kind !== "choice" || described.choices.includes(text)) input.value = text;
                field.mark();
            },
            /** Say what is wrong with it, or with null that nothing is. */
            tell: (sentence) => {
                wrong.textContent = sentence ?? "";
                wrong.hidden = !sentence;
                input.setAttribute("aria-invalid", String(Boolean(sentence)));
            },
            /** Say that this machine gets another value. */
            choose: (value) => {
                chosen.hidden = value === undefined || value === field.get();
                chosen.textContent = `On this machine: ${{ true: "on", false: "off" }[value] ?? value}`;
            },
            usually: (text) => {
                usual = text;
                field.mark();
            },
            isOwn: () => usual === null,
            isChanged: () => usual !== null && field.get() !== usual,
            mark: () => element.classList.toggle("changed", field.isChanged()),
        };
        field.set(described.default);
        input.addEventListener(isSwitch || described.kind === "choice" ? "change" : "input", () => {
            field.tell(null);
            field.mark();
            changed(field);
        });
        return field;
    };

    /** The base model: those that the host knows, the loaded one first, and where it may be named any other file. */
    loom.makeBase = (described, page, changed) => {
        const other = make("input", {
            type: "text",
            class: "other",
            "aria-label": "Checkpoint file",
            placeholder: "/path/to/model.safetensors",
            spellcheck: "false",
            hidden: true,
        });
        let bases = page.bases;
        const options = () => [
            ...bases.map((base) =>
                make("option", { value: base.file }, base.loaded ? `${base.name} (in use)` : base.name),
            ),
            ...(page.names_files ? [make("option", { value: OTHER }, "Another file …")] : []),
        ];
        const field = loom.makeField(
            { ...described, own: true, kind: "choice", choices: [], default: "" },
            changed,
        );
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
            const file = field.get(),
                followed = file === bases[0]?.file;
            bases = now;
            field.input.replaceChildren(...options());
            field.set(followed ? "" : file);
            return followed;
        };
        field.set("");
        return field;
    };
})();
