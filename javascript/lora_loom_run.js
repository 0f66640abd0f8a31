/* The view of one run: how it comes along, what can be asked of it, and what it made. */
(() => {
    "use strict";
    const loom = (globalThis.loraLoom ??= {});
    const make = (...all) => loom.make(...all);
    const SURE_MS = 4000;
    loom.statusWords = {
        queued: "waiting for its turn",
        starting: "starting",
        running: "running",
        paused: "paused",
        stopped: "stopped",
        failed: "failed",
        done: "done",
        dead: "worker lost",
    };
    const COMMANDS = {
        pause: ["Pause", "Save the state and free the memory; go on at any time"],
        save: ["Save now", "Write the LoRA as it is and go on"],
        stop: ["Stop and save", "Write the LoRA as it is and end; the run can still be resumed"],
        resume: ["Resume", "Go on where it was left"],
        remove: [
            "Delete the run",
            "Remove its folder with states and samples; a LoRA that was written stays",
        ],
    };

    /** Return a duration as people say it. */
    loom.duration = (seconds) => {
        const whole = Math.max(0, Math.round(seconds));
        if (whole < 60) return `${whole} s`;
        if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
        return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
    };

    /** Return the speed of a training in the unit that reads best. */
    loom.pace = (seconds) =>
        seconds >= 1 ? `${seconds.toFixed(2)} s/it` : `${(1 / seconds).toFixed(seconds > 0.1 ? 2 : 1)} it/s`;

    /** Return what was found out about the speed after the first steps, and why it is slow. */
    loom.paceWords = ({ seconds_per_step: step, epoch_seconds: epoch, run_seconds: whole, sentence }) =>
        step
            ? `${loom.pace(step)}: ${loom.duration(epoch)} for an epoch, ${loom.duration(whole)} for the run. ${sentence ?? ""}`.trim()
            : "";

    /** Return the points of a run with the new ones added. */
    loom.extended = (points, added) => {
        const last = points.at(-1)?.[0] ?? -1,
            first = added[0]?.[0] ?? Infinity;
        // A resumed run counts again from its last state.
        const kept = first <= last ? points.filter(([step]) => step < first) : points;
        return [...kept, ...added];
    };

    /** Ask before what cannot be undone: a button does it only when it is pressed again soon. */
    const confirmed = (button) => {
        if (button.dataset.asked) return true;
        const words = button.textContent;
        button.dataset.asked = "yes";
        button.textContent = "Really delete?";
        setTimeout(() => {
            delete button.dataset.asked;
            button.textContent = words;
        }, SURE_MS);
        return false;
    };

    const figure = (label) => {
        const value = make("dd"),
            element = make("div", { hidden: true }, make("dt", {}, label), value);
        return {
            element,
            set: (text) => {
                value.textContent = text;
                element.hidden = !text;
            },
        };
    };

    /** Return {element, show}: everything about one run. again: asks the server at once. */
    loom.runPanel = (routes, again) => {
        const name = make("h2", {}),
            status = make("span", { class: "status" }),
            stage = make("p", { class: "stage" });
        const bar = make("progress", { "aria-label": "Progress" });
        const figures = {
            step: figure("Step"),
            epoch: figure("Epoch"),
            left: figure("Time left"),
            spent: figure("Took"),
            pace: figure("Speed"),
            loss: figure("Loss"),
        };
        const slow = make("p", { class: "help", hidden: true });
        const message = make("p", { class: "message", role: "alert", hidden: true });
        const finished = make("div", { class: "finished", hidden: true });
        const buttons = make("div", { class: "actions" });
        const answer = make("p", { class: "help", role: "status" });
        const chart = loom.lossChart(),
            samples = loom.gallery(routes);
        const notes = make("div", { class: "notes" });
        const log = make("pre", { class: "log", tabindex: "0", "aria-label": "Log" });
        const logBox = make("details", { class: "more" }, make("summary", {}, "Log"), log);
        const element = make(
            "section",
            { class: "card run", "aria-label": "Run" },
            make("header", {}, name, status),
            stage,
            bar,
            make(
                "dl",
                { class: "figures" },
                Object.values(figures).map(({ element }) => element),
            ),
            slow,
            message,
            finished,
            buttons,
            answer,
            chart.element,
            samples.element,
            notes,
            logBox,
        );
        let refused = "",
            run = null,
            points = [],
            validation = [];

        const ask = async (command) => {
            refused = "";
            for (const button of buttons.querySelectorAll("button")) button.disabled = true;
            try {
                await routes.post(`runs/${encodeURIComponent(run.id)}/command`, { command });
            } catch (error) {
                refused = loom.inWords(error);
            }
            delete buttons.dataset.key;
            again();
        };
        const showButtons = () => {
            const key = `${run.id} ${run.commands.join()} ${run.pending}`;
            if (buttons.dataset.key === key) return;
            buttons.dataset.key = key;
            buttons.replaceChildren(
                ...run.commands.map((command) => {
                    const kind = { resume: "primary", remove: "quiet" }[command] ?? "";
                    const press = ({ currentTarget }) =>
                        command === "remove" && !confirmed(currentTarget) ? null : ask(command);
                    return make(
                        "button",
                        {
                            type: "button",
                            class: kind,
                            title: COMMANDS[command][1],
                            disabled: Boolean(run.pending),
                            onclick: press,
                        },
                        COMMANDS[command][0],
                    );
                }),
            );
        };
        const showFinished = () => {
            const file = run.result?.file;
            finished.hidden = !file;
            if (!file || finished.dataset.file === file) return;
            finished.dataset.file = file;
            const tag = `<lora:${run.result.name}:1>`,
                text = run.result.trigger ? `${tag} ${run.result.trigger}` : tag;
            const missed = make(
                "p",
                { class: "help", hidden: true },
                `There is no prompt on this page; the tag is ${text}`,
            );
            finished.replaceChildren(
                make(
                    "p",
                    {},
                    run.status === "done" ? "The LoRA lies at " : "What it had learned lies at ",
                    make("code", {}, file),
                ),
                make(
                    "div",
                    { class: "actions" },
                    make(
                        "button",
                        {
                            type: "button",
                            class: "primary try",
                            onclick: async () => (missed.hidden = await loom.tryIt(text)),
                        },
                        "Try it",
                    ),
                    make("code", { class: "tag" }, tag),
                ),
                missed,
            );
        };
        const showProgress = () => {
            const training = run.training || !run.active,
                total = training ? run.steps : run.total;
            const step = training ? run.done_steps : run.step;
            if (total) [bar.max, bar.value] = [total, step];
            else bar.removeAttribute("value");
            bar.hidden = !run.active || run.status === "queued";
            figures.step.set(`${run.done_steps} / ${run.steps}`);
            figures.epoch.set(run.epochs ? `${run.epoch} / ${run.epochs}` : "");
            figures.left.set(run.active && run.left != null ? loom.duration(run.left) : "");
            figures.spent.set(run.active || !run.spent ? "" : loom.duration(run.spent));
            figures.pace.set(run.seconds_per_step ? loom.pace(run.seconds_per_step) : "");
            const loss = loom.smoothed(points).at(-1);
            figures.loss.set(loss ? loss[1].toFixed(4) : "");
            slow.textContent = run.active ? loom.paceWords(run.pace) : "";
            slow.hidden = !slow.textContent;
        };
        const showWords = () => {
            name.textContent = run.name;
            status.textContent = run.pending
                ? `${run.pending} asked for`
                : (loom.statusWords[run.status] ?? run.status);
            status.className = `status ${run.status}`;
            stage.textContent = run.active ? run.stage : "";
            stage.hidden = !stage.textContent;
            answer.textContent = refused || run.answer;
            message.textContent = run.message;
            message.hidden = !run.message;
            notes.replaceChildren(...[loom.sentences("advice", run.notes)].filter(Boolean));
            if (log.textContent !== run.log) {
                const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
                log.textContent = run.log;
                if (atEnd) log.scrollTop = log.scrollHeight;
            }
            logBox.hidden = !run.log;
            if (run.status === "failed" || run.status === "dead")
                logBox.toggleAttribute("open", logBox.dataset.seen !== run.id || logBox.open);
            logBox.dataset.seen = run.id;
        };
        return {
            element,
            show: (told) => {
                if (told.id !== run?.id || told.fresh) {
                    [points, validation] = [[], []];
                    if (told.id !== run?.id) {
                        samples.clear();
                        refused = "";
                        logBox.open = false;
                        delete finished.dataset.file;
                    }
                }
                run = told;
                if (told.fresh || told.points.length || told.validation.length) {
                    points = loom.extended(points, told.points);
                    validation = loom.extended(validation, told.validation);
                    chart.draw(points, validation);
                }
                chart.element.hidden = !points.length;
                showWords();
                showProgress();
                showButtons();
                showFinished();
                samples.show(run.id, run.samples);
            },
        };
    };
})();
