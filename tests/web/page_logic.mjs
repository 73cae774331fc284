// What the modules of the page compute, without a browser. test_page_logic.py runs it.

import assert from "node:assert/strict";

const [dir] = process.argv.slice(2);
const from = (name) => import(`${dir}/${name}.js`);
const { age, ageStep, ago, expand, lagStep, moment, number, ranges, span, whole } = await from("format");
const { build, parse, sameView } = await from("route");
const { direction, inSight, matches, ordered, places } = await from("rows");
const { layout } = await from("flow");
const { ratio, unevenness } = await from("load");

const CASES = {
  "unknown is a word and never a number": () => {
    for (const words of [number, whole, span])
      for (const value of [null, undefined]) assert.equal(words(value), "unknown");
    assert.deepEqual([number(0), whole(0), span(0), age(0, null)], ["0", "0", "0 s", "0 s"]);
    assert.deepEqual([age(null, 120), age(null, null), ago(null, 5)], ["over 2 min", "unknown", "unknown"]);
    assert.deepEqual([lagStep(null), ageStep(null), lagStep(0), ageStep(3600), lagStep(1e9)], [null, null, 0, 4, 5]);
  },
  "an imbalance is unknown if a load is not known": () => {
    assert.deepEqual(
      [unevenness([3, 1]), unevenness([0, 0]), unevenness([3, null]), ratio(null)],
      [1.5, 1, null, "unknown"],
    );
  },
  "a timestamp in microseconds is a number and no date": () => {
    const second = 1_767_225_600;
    assert.equal(moment(second * 1000), "1767225600000000 ms since 1970");
    assert.match(moment(second * 1e6), /^about 1767225600000000000 ms since 1970$/);
    assert.match(moment(second), /2026/);
  },
  "numbers and times are short": () => {
    assert.deepEqual([0.00123, 0.5, -0.04].map(number), ["0.0012", "0.5", "-0.04"]);
    assert.deepEqual([999, 1000, 12_345, 1.25, 5e6, 2e9].map(number), ["999", "1k", "12k", "1.3", "5M", "2G"]);
    assert.deepEqual([0.0004, 0.25, 4.04, 89, 600, 7200, 864000].map(span), [
      "1 ms",
      "250 ms",
      "4 s",
      "89 s",
      "10 min",
      "2 h",
      "10 days",
    ]);
    assert.equal(whole(10000), "10\u202f000");
  },
  "ranges survive the way there and back": () => {
    for (const text of ["", "0", "0-3,7", "1-2,4-5,9"]) assert.equal(ranges(expand(text)), text);
  },
  "an address names the same view again": () => {
    const routes = [
      { view: "overview", group: null, item: null, query: { q: "a b", sort: "-lag" } },
      { view: "summary", group: "orders & <co>/x?#", item: null, query: {} },
      { view: "member", group: "g", item: "m-1", query: {} },
      { view: "topic", group: "g", item: "a/b%", query: { q: ":3" } },
      { view: "rebalance", group: "g", item: "1795", query: {} },
    ];
    for (const route of routes) {
      assert.deepEqual(parse(build(route)), route);
      assert.ok(sameView(parse(build(route)), route));
    }
    assert.deepEqual(
      parse("#large"),
      { view: "summary", group: "large", item: null, query: {} },
      "as older versions wrote it",
    );
    assert.equal(parse("#/group/g/nonsense").view, "summary");
    assert.equal(parse("#/elsewhere").view, "overview");
    assert.equal(parse("#/group/%E0%A4%A").group, "%E0%A4%A");
    assert.equal(build({ query: { q: "", state: undefined, sort: "lag" } }), "#/?sort=lag");
  },
  "rows keep their order and unknown comes last": () => {
    const rows = [
      [1, 5],
      [2, null],
      [3, 9],
      [4, 5],
      [5, 0],
    ];
    assert.deepEqual(
      ordered(rows, (row) => row[1], false).map((row) => row[0]),
      [5, 1, 4, 3, 2],
    );
    assert.deepEqual(
      ordered(rows, (row) => row[1], true).map((row) => row[0]),
      [3, 1, 4, 5, 2],
    );
    assert.deepEqual(
      ordered(["t:10", "t:9"], (row) => row, false),
      ["t:9", "t:10"],
    );
    assert.deepEqual(
      [direction("-lag"), direction("lag"), direction(undefined)],
      [
        ["lag", true],
        ["lag", false],
        ["", false],
      ],
    );
  },
  "each word of a search has to occur": () => {
    assert.ok(matches("orders:17 worker-3", "WORKER 17"));
    assert.ok(!matches("orders:17 worker-3", "worker 18"));
    assert.ok(matches("x", ""));
  },
  "the lines of a card are those that a grid makes of its cells": () => {
    assert.deepEqual(
      [places([], 3), places([1, 1, 1], 3), places([1, 1, 1, 1], 3), places([1, 3, 1], 3), places([2, 2, 1], 3)],
      [0, 1, 2, 3, 2],
    );
  },
  "only rows in sight are drawn, all of those": () => {
    for (const [count, top] of [
      [10_000, 0],
      [10_000, 170_000],
      [10_000, 339_500],
      [5, 0],
    ]) {
      const [first, last] = inSight(count, 34, top, 500);
      assert.ok(
        first <= top / 34 &&
          last >= Math.min(count, (top + 500) / 34) &&
          last - first < 60 &&
          first >= 0 &&
          last <= count,
      );
    }
  },
  "bands keep every partition and stay within their ends": () => {
    const moves = [];
    for (let at = 0; at < 80; at += 1)
      moves.push({ from: at % 3 ? `a${at % 40}` : null, to: `b${at}`, partitions: 1 + (at % 7) });
    const found = layout(moves, { most: 12 }),
      total = (list) => list.reduce((sum, each) => sum + each.partitions, 0);
    for (const list of [found.bands, found.left, found.right]) assert.equal(total(list), total(moves));
    assert.equal(found.right.length, 12);
    assert.ok(found.right.at(-1).name.endsWith("others") && found.left.some((end) => end.name === "no owner"));
    for (const [ends, side, y, h] of [
      [found.left, "from", "y0", "h0"],
      [found.right, "to", "y1", "h1"],
    ]) {
      for (const end of ends) {
        const bands = found.bands.filter((band) => band[side] === end.name).sort((a, b) => a[y] - b[y]);
        let at = end.y;
        for (const band of bands) {
          assert.ok(Math.abs(band[y] - at) < 1e-6, "no gap and no overlap");
          at += band[h];
        }
        assert.ok(Math.abs(at - end.y - end.height) < 1e-6);
      }
    }
    assert.deepEqual(layout([]), { height: 0, left: [], right: [], bands: [] });
  },
};

const failed = {};
for (const [name, check] of Object.entries(CASES)) {
  try {
    check();
  } catch (error) {
    failed[name] = String(error.stack);
  }
}
console.log(JSON.stringify({ run: Object.keys(CASES), failed }));
