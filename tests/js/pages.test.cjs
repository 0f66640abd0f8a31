// The parts of the pages that need no browser: the chart's arithmetic and the words for figures. Run by test_pages.py.
"use strict";
const assert = require("node:assert/strict");
const test = require("node:test");

for (const name of [
    "lora_loom",
    "lora_loom_chart",
    "lora_loom_fields",
    "lora_loom_form",
    "lora_loom_panels",
    "lora_loom_gallery",
    "lora_loom_run",
    "lora_loom_live",
])
    require(`../../javascript/${name}.js`);
const loom = globalThis.loraLoom;

test("a constant loss stays what it is when smoothed, from the first step on", () => {
    const points = Array.from({ length: 300 }, (_, k) => [k + 1, 0.25]);
    for (const [, loss] of loom.smoothed(points)) assert.ok(Math.abs(loss - 0.25) < 1e-12);
});

test("smoothing keeps the steps and takes most of the noise away", () => {
    const points = Array.from({ length: 400 }, (_, k) => [k + 1, 1 + (k % 2 ? 0.5 : -0.5)]);
    const smooth = loom.smoothed(points);
    assert.deepEqual(
        smooth.map(([step]) => step),
        points.map(([step]) => step),
    );
    // An exponential mean over 40 points leaves 1/79 of an alternating term: 0.0063 of 0.5.
    assert.ok(Math.abs(smooth.at(-1)[1] - 1) < 0.0064);
});

test("few points are not smoothed", () => {
    const points = [
        [1, 3],
        [2, 1],
    ];
    assert.deepEqual(loom.smoothed(points), points);
});

test("one wild step does not set the scale, and validation always fits", () => {
    const points = Array.from({ length: 500 }, (_, k) => [k, 0.1 + 0.0001 * k]);
    points[250][1] = 90;
    const [low, high] = loom.lossRange(points, [[500, 0.3]]);
    assert.ok(low >= 0 && low < 0.11 && high > 0.3 && high < 0.4);
    assert.deepEqual(loom.lossRange([], []), [0, 1]);
    assert.ok(
        loom.lossRange(
            [
                [1, NaN],
                [2, 0.5],
            ],
            [],
        )[1] > 0.5,
    );
});

test("ticks are round, inside, and few", () => {
    assert.deepEqual(loom.ticks(0, 1, 4), [0, 0.5, 1]);
    assert.deepEqual(loom.ticks(0.03, 0.21, 4), [0.05, 0.1, 0.15, 0.2]);
    assert.deepEqual(loom.ticks(0, 1000, 5), [0, 200, 400, 600, 800, 1000]);
});

test("the nearest point is found on either side", () => {
    const points = [
        [1, 0.1],
        [5, 0.5],
        [6, 0.6],
    ];
    assert.deepEqual(
        [-3, 2, 4, 5.4, 99].map((step) => loom.nearest(points, step)[0]),
        [1, 1, 5, 5, 6],
    );
    assert.equal(loom.nearest([], 3), undefined);
});

test("a resumed run takes its steps up again from where it was left", () => {
    const seen = [
        [1, 1],
        [2, 2],
        [3, 3],
    ];
    assert.deepEqual(loom.extended(seen, [[4, 4]]), [
        [1, 1],
        [2, 2],
        [3, 3],
        [4, 4],
    ]);
    assert.deepEqual(
        loom.extended(seen, [
            [2, 9],
            [3, 8],
        ]),
        [
            [1, 1],
            [2, 9],
            [3, 8],
        ],
    );
    assert.deepEqual(loom.extended([], []), []);
});

test("durations, speeds and sizes read as people say them", () => {
    assert.deepEqual([3.4, 59.6, 75, 3600, 7325].map(loom.duration), [
        "3 s",
        "1 min 00 s",
        "1 min 15 s",
        "1 h 00 min",
        "2 h 02 min",
    ]);
    assert.deepEqual([2.5, 1, 0.5, 0.04].map(loom.pace), [
        "2.50 s/it",
        "1.00 s/it",
        "2.00 it/s",
        "25.0 it/s",
    ]);
    assert.deepEqual([512, 3 * 2 ** 20, 1.5 * 2 ** 30].map(loom.gigabytes), ["1 MB", "3 MB", "1.5 GB"]);
    assert.equal(loom.rangeText({ range: [1, 1000000] }), "1 – 1e6");
    assert.equal(loom.rangeText({ range: null }), "");
    const pace = {
        seconds_per_step: 2,
        epoch_seconds: 48,
        run_seconds: 2000,
        sentence: "Slow because: a CPU.",
    };
    assert.equal(
        loom.paceWords(pace),
        "2.00 s/it: 48 s for an epoch, 33 min 20 s for the run. Slow because: a CPU.",
    );
    assert.equal(loom.paceWords({}), "");
});

/** Have the page's storage be another one until the end of a test. */
const storing = (t, described) => {
    Object.defineProperty(globalThis, "localStorage", { configurable: true, ...described });
    t.after(() => delete globalThis.localStorage);
};

test("a form is kept, and what is no form is none", (t) => {
    const held = new Map();
    storing(t, {
        value: { getItem: (key) => held.get(key) ?? null, setItem: (key, text) => held.set(key, text) },
    });
    assert.deepEqual(loom.keptForm(), {});
    loom.keepForm({ "network.rank": "8" });
    assert.deepEqual(loom.keptForm(), { "network.rank": "8" });
    for (const text of ["null", "7", '"text"', "{half of it", ""]) {
        held.set([...held.keys()][0], text);
        assert.deepEqual(loom.keptForm(), {}, text);
    }
});

test("a browser that keeps nothing hinders nothing", (t) => {
    const refuse = () => {
        throw new Error("QuotaExceededError");
    };
    const refusing = [{ value: { getItem: refuse, setItem: refuse } }, { get: refuse }, { value: null }];
    for (const described of refusing) {
        storing(t, described);
        loom.keepForm({ "network.rank": "8" });
        assert.deepEqual(loom.keptForm(), {});
    }
});

test("an error is told in words: of the fields, of the server, or that it is silent", () => {
    const problems = [
        ["data.folder", "There is no folder."],
        ["network.rank", "Too high."],
    ];
    const refused = new loom.Refused("data.folder: There is no folder.", problems);
    assert.equal(loom.inWords(refused), "There is no folder. Too high.");
    assert.equal(loom.inWords(new loom.Refused("There is no such run.")), "There is no such run.");
    assert.equal(loom.inWords(new TypeError("Failed to fetch")), "The server does not answer.");
});

test("an answer that comes after a later question is not shown", async () => {
    const shown = [];
    const latest = loom.latest(
        (told) => shown.push(told),
        (error) => shown.push(error.message),
    );
    const answers = [];
    const question = () => latest.ask(new Promise((good, bad) => answers.push({ good, bad })));
    const all = [question(), question(), question()];
    answers[1].good("second");
    answers[2].good("third");
    answers[0].bad(new Error("first"));
    await Promise.all(all);
    assert.deepEqual(shown, ["third"]);
    const last = question();
    latest.forget();
    answers[3].good("forgotten");
    await last;
    assert.deepEqual(shown, ["third"]);
});
