/* The chart of a training's loss: every step faintly, its smoothed course, the validation, and the values under the pointer. */
(() => {
    "use strict";
    const loom = (globalThis.loraLoom ??= {});
    const HEIGHT = 220,
        LEFT = 46,
        RIGHT = 12,
        TOP = 12,
        BOTTOM = 24;
    const SVG = "http://www.w3.org/2000/svg";

    /** Return the smoothed course of [[step, loss], ...]: an exponential mean over about a tenth of the points, without start bias. */
    loom.smoothed = (points) => {
        const keep = 1 - 1 / Math.max(1, Math.min(200, points.length / 10));
        let sum = 0,
            weight = 0;
        return points.map(([step, loss]) => {
            sum = keep * sum + (1 - keep) * loss;
            weight = keep * weight + (1 - keep);
            return [step, sum / weight];
        });
    };

    /** Return [low, high] of the losses without the outermost hundredth, so that one wild step does not flatten the rest. */
    loom.lossRange = (raw, others) => {
        const sorted = raw
            .map(([, loss]) => loss)
            .filter(Number.isFinite)
            .sort((a, b) => a - b);
        const at = (share) => sorted[Math.round(share * (sorted.length - 1))];
        const all = [
            ...others.map(([, loss]) => loss).filter(Number.isFinite),
            ...(sorted.length ? [at(0.01), at(0.99)] : []),
        ];
        if (!all.length) return [0, 1];
        const low = Math.min(...all),
            high = Math.max(...all),
            room = (high - low || Math.abs(high) || 1) * 0.06;
        return [Math.max(0, low - room), high + room];
    };

    /** Return about `count` round numbers from low to high. */
    loom.ticks = (low, high, count) => {
        const rough = (high - low) / count,
            power = 10 ** Math.floor(Math.log10(rough));
        const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
        const first = Math.ceil(low / step - 1e-9);
        const found = [];
        for (let k = first; k * step <= high + 1e-9 * step; k++)
            found.push(Number((k * step).toPrecision(12)));
        return found;
    };

    /** Return the point of [[step, loss], ...] whose step is nearest; the steps rise. */
    loom.nearest = (points, step) => {
        let low = 0,
            high = points.length - 1;
        while (high - low > 1) {
            const middle = (low + high) >> 1;
            if (points[middle][0] < step) low = middle;
            else high = middle;
        }
        if (high < 0) return undefined;
        return step - points[low][0] <= points[high][0] - step ? points[low] : points[high];
    };

    const shape = (tag, attributes, ...children) => {
        const element = document.createElementNS(SVG, tag);
        for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
        element.append(...children);
        return element;
    };

    /** Return {element, draw(points, validation)}. */
    loom.lossChart = () => {
        const svg = shape("svg", {
            class: "chart",
            role: "img",
            "aria-label": "Loss over the steps",
            height: HEIGHT,
        });
        const told = loom.make("output", { class: "told", "aria-live": "off" });
        const legend = loom.make(
            "p",
            { class: "legend" },
            ...[
                ["raw", "each step"],
                ["smooth", "smoothed"],
                ["validation", "validation"],
            ].map(([kind, words]) => loom.make("span", { class: kind }, words)),
            told,
        );
        const element = loom.make("figure", { class: "loss" }, legend, svg);
        let data = { points: [], validation: [] },
            smooth = [],
            scale = null;

        const draw = () => {
            const width = Math.max(280, Math.round(svg.getBoundingClientRect().width || 560));
            const { points, validation } = data;
            svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
            legend.querySelector(".validation").hidden = !validation.length;
            const [low, high] = loom.lossRange(points, [...smooth, ...validation]);
            const last = Math.max(points.at(-1)?.[0] ?? 0, validation.at(-1)?.[0] ?? 0, 1);
            const x = (step) => LEFT + ((width - LEFT - RIGHT) * step) / last;
            const y = (loss) =>
                TOP + ((HEIGHT - TOP - BOTTOM) * (high - Math.min(high, Math.max(low, loss)))) / (high - low);
            scale = { x, y, last, width };
            const parts = [];
            for (const tick of loom.ticks(low, high, 4)) {
                parts.push(
                    shape("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }),
                );
                parts.push(
                    shape("text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, String(tick)),
                );
            }
            for (const tick of loom.ticks(0, last, Math.max(3, Math.floor(width / 130)))) {
                const anchor = x(tick) > width - 30 ? "end" : tick === 0 ? "start" : "middle";
                parts.push(
                    shape(
                        "text",
                        { x: x(tick), y: HEIGHT - 6, "text-anchor": anchor },
                        tick === 0 ? "step 0" : String(tick),
                    ),
                );
            }
            const line = (kind, course) => {
                if (course.length < 1) return;
                const path = course
                    .filter(([, loss]) => Number.isFinite(loss))
                    .map(([step, loss]) => `${x(step).toFixed(1)},${y(loss).toFixed(1)}`);
                parts.push(shape("polyline", { class: kind, points: path.join(" ") }));
            };
            line("raw", points);
            line("smooth", smooth);
            line("validation", validation);
            for (const [step, loss] of validation)
                parts.push(shape("circle", { class: "validation", cx: x(step), cy: y(loss), r: 3 }));
            parts.push(shape("g", { class: "cursor" }));
            svg.replaceChildren(...parts);
        };

        const point = (event) => {
            const cursor = svg.querySelector(".cursor");
            if (!scale || !data.points.length || !cursor) return;
            const box = svg.getBoundingClientRect();
            const step =
                ((((event.clientX - box.left) * scale.width) / box.width - LEFT) /
                    (scale.width - LEFT - RIGHT)) *
                scale.last;
            const raw = loom.nearest(data.points, step),
                mean = loom.nearest(smooth, step);
            const x = scale.x(raw[0]);
            cursor.replaceChildren(
                shape("line", { x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }),
                shape("circle", { class: "smooth", cx: x, cy: scale.y(mean[1]), r: 3.5 }),
            );
            told.textContent = `step ${raw[0]} · ${raw[1].toFixed(4)} · smoothed ${mean[1].toFixed(4)}`;
        };
        svg.addEventListener("pointermove", point);
        svg.addEventListener("pointerleave", () => {
            svg.querySelector(".cursor")?.replaceChildren();
            told.textContent = "";
        });
        if (typeof ResizeObserver === "function") new ResizeObserver(draw).observe(element);

        return {
            element,
            draw: (points, validation) => {
                data = { points, validation };
                smooth = loom.smoothed(points);
                draw();
            },
        };
    };
})();
