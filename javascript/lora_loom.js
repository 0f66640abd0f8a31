/* The pages of LoRA Loom: finding their place in the host's page, talking to the routes, asking how the runs stand. */
(() => {
    "use strict";
    const loom = (globalThis.loraLoom ??= {});
    const PLACE = "lora_loom_train";
    const SILENT = "The server does not answer.";
    const LOOK_MS = 300,
        BUSY_MS = 1000,
        IDLE_MS = 3000;

    /** Make an element. Texts become text nodes: nothing that comes from a file or a person is ever read as markup. */
    loom.make = (tag, attributes = {}, ...children) => {
        const element = document.createElement(tag);
        for (const [name, value] of Object.entries(attributes)) {
            if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
            else if (value === true) element.setAttribute(name, "");
            else if (value !== false && value != null) element.setAttribute(name, value);
        }
        element.append(...children.flat().filter((child) => child != null));
        return element;
    };

    /** What a route refused; `problems` are pairs of a field and a sentence. */
    class Refused extends Error {
        constructor(sentence, problems = []) {
            super(sentence);
            this.problems = problems;
        }
    }
    loom.Refused = Refused;

    /** Return what a person is told of an error: what is wrong with the fields, else what the server said, if it said anything. */
    loom.inWords = (error) => {
        if (!(error instanceof Refused)) return SILENT;
        return error.problems.map(([, sentence]) => sentence).join(" ") || error.message;
    };

    /** The routes, as functions. token: the page's, without which they answer nothing. */
    loom.routes = (token) => {
        const ask = (path, options = {}) =>
            fetch(new URL(`lora_loom/${path}`, document.baseURI), {
                ...options,
                headers: { "X-Loom-Token": token, ...options.headers },
                cache: options.cache ?? "no-store",
            });
        const read = async (answer) => {
            const told = await answer.json().catch(() => ({}));
            if (answer.ok) return told;
            throw new Refused(
                told.message ?? told.detail ?? `The server answered ${answer.status}.`,
                told.problems,
            );
        };
        return {
            get: async (path) => read(await ask(path)),
            post: async (path, body) =>
                read(
                    await ask(path, {
                        method: "POST",
                        headers: { "Content-Type": "application/json" },
                        body: JSON.stringify(body),
                    }),
                ),
            /** Return a picture as an address that lives as long as the page. */
            picture: async (path) => {
                const answer = await ask(path, { cache: "default" });
                if (!answer.ok) throw new Refused(`The server answered ${answer.status}.`);
                return URL.createObjectURL(await answer.blob());
            },
        };
    };

    const root = () => (typeof gradioApp === "function" ? gradioApp() : document);
    const isVisible = (element) => element.offsetParent !== null && !document.hidden;

    const soon = async (find) => {
        for (let tries = 0; tries < 20; tries++) {
            const found = find();
            if (found) return found;
            await new Promise((done) => setTimeout(done, 100));
        }
        return null;
    };

    /** Go to the page that draws and put a LoRA's tag into its prompt; tells whether there is one. */
    loom.tryIt = async (text) => {
        if (typeof switch_to_txt2img === "function") switch_to_txt2img();
        else
            [...root().querySelectorAll("button[role=tab]")]
                .find((tab) => tab.textContent.trim() === "Generate")
                ?.click();
        const prompt = await soon(() => root().querySelector("#txt2img_prompt textarea"));
        if (!prompt) return false;
        if (!prompt.value.includes(text)) {
            prompt.value = `${prompt.value.trimEnd()} ${text}`.trimStart();
            prompt.dispatchEvent(new Event("input", { bubbles: true }));
        }
        prompt.focus();
        return true;
    };

    /** Build the Train page in its place and keep it up to date for as long as the place is there. */
    const mount = async (place) => {
        const routes = loom.routes(place.dataset.token);
        const page = await routes.get("page");
        const offline = loom.make("p", { class: "offline", role: "status", hidden: true });
        const form = loom.trainForm(routes, page, (run) => {
            live.choose(run);
            place.scrollIntoView({ behavior: "smooth" });
        });
        const live = loom.liveView(routes, form.memory);
        place.replaceChildren(offline, loom.make("div", { class: "columns" }, form.element, live.element));
        let seen = true,
            hurry = false;
        const hurryUp = () => (hurry = true);
        let rouse = hurryUp;
        const rest = (milliseconds) =>
            new Promise((done) => {
                const goOn = () => {
                    clearTimeout(timer);
                    [hurry, rouse] = [false, hurryUp];
                    done();
                };
                const timer = setTimeout(goOn, hurry ? 0 : milliseconds);
                rouse = goOn;
            });
        live.wake = () => rouse();
        /** Ask once and show the answer; return how long to wait until the next time. */
        const turn = async () => {
            const visible = isVisible(place),
                back = visible && !seen;
            seen = visible;
            if (!visible) return LOOK_MS;
            try {
                if (back) await form.refresh();
                const asked = live.wanted(),
                    state = await routes.get(`state?${new URLSearchParams(asked)}`);
                live.show(state, asked);
                form.show(state);
                offline.hidden = true;
                return state.runs.some((run) => run.active) || state.environment.busy ? BUSY_MS : IDLE_MS;
            } catch (error) {
                offline.textContent = error instanceof Refused ? error.message : `${SILENT} Trying again …`;
                offline.hidden = false;
                return BUSY_MS;
            }
        };
        while (place.isConnected) await rest(await turn());
    };

    const look = () => {
        const place = root().querySelector(`#${PLACE}`);
        // The other scripts may still be on their way.
        if (!place || place.dataset.mounted || !loom.trainForm || !loom.runPanel || !loom.liveView) return;
        place.dataset.mounted = "yes";
        mount(place).catch((error) => {
            place.replaceChildren(loom.make("p", { class: "offline", role: "alert" }, loom.inWords(error)));
            setTimeout(() => delete place.dataset.mounted, IDLE_MS);
        });
    };
    if (typeof document !== "undefined") setInterval(look, LOOK_MS);
})();
