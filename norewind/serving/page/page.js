"use strict";
// The live page of a run. It receives everything as server-sent events, and keeps only the data it shows.

const RECENT = 200;
const run = { about: { simple: {} }, metrics: [], rows: [], status: {} };
// The latest states of the run with their times, to compute rates over about five seconds.
const history = [];
const view = { paused: false, span: 1, hidden: new Set(), target: null, key: null };
const get = (id) => document.getElementById(id);

function make(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") node.textContent = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function draw(tag, options) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") node.textContent = value;
    else node.setAttribute(name, value);
  }
  return node;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

function short(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-4)) return value.toExponential(2);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

function ago(seconds) {
  const [size, name] = seconds < 120 ? [1, "s"] : seconds < 7200 ? [60, "min"] : seconds < 172800 ? [3600, "h"] : [86400, "days"];
  return seconds < 5 ? "now" : `${Math.round(seconds / size)} ${name} ago`;
}

function words(value) {
  if (value === null || value === undefined) return "–";
  if (isNumber(value)) return short(value);
  if (typeof value !== "object") return String(value);
  return Object.entries(value).slice(0, 3).map(([name, inner]) => `${name} ${words(inner)}`).join(", ");
}

// Charts: a frame with ticks, and lines in it.

function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((part) => part * power).find((size) => size >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

// Powers of ten, with 2 and 5 times them if there are few.
function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    for (const part of high < 1000 * low ? [1, 2, 5] : [1]) found.push(part * 10 ** power);
  }
  return found.filter((at) => at >= low && at <= high);
}

function frame(svg, xs, ys, { log = false, label = short } = {}) {
  const width = svg.clientWidth || 600;
  const height = svg.clientHeight || 250;
  const room = { left: 52, right: 10, top: 8, bottom: 22 };
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const scale = ([low, high], from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);
  const x = scale(xs, room.left, width - room.right);
  const linear = scale(log ? ys.map(Math.log) : ys, height - room.bottom, room.top);
  const y = log ? (value) => linear(Math.log(Math.max(value, ys[0]))) : linear;
  for (const at of log ? logTicks(...ys) : ticks(ys[0], ys[1], Math.max(2, height / 60))) {
    svg.append(draw("line", { class: "grid", x1: room.left, x2: width - room.right, y1: y(at), y2: y(at) }));
    svg.append(draw("text", { x: room.left - 6, y: y(at) + 4, "text-anchor": "end", text: short(at) }));
  }
  for (const at of ticks(xs[0], xs[1], Math.max(2, width / 130))) {
    const anchor = x(at) > width - 40 ? "end" : "middle";
    svg.append(draw("text", { x: x(at), y: height - 5, "text-anchor": anchor, text: label(at) }));
  }
  return { x, y, bottom: height - room.bottom };
}

function line(svg, points, kind) {
  let path = "";
  let pen = "M";
  for (const [x, y] of points) {
    if (y === null) { pen = "M"; continue; }
    path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  }
  if (path) svg.append(draw("path", { class: kind, d: path }));
}

function spread(values, share = 0.06) {
  const known = values.filter(isNumber);
  if (!known.length) return [0, 1];
  let [low, high] = [Math.min(...known), Math.max(...known)];
  const room = (high - low) * share || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}

function empty(svg, text) {
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${svg.clientWidth || 600} ${svg.clientHeight || 250}`);
  svg.append(draw("text", { x: "50%", y: "50%", "text-anchor": "middle", text }));
}

function showLoss() {
  const all = run.metrics;
  const last = all.length ? all[all.length - 1].samples : 0;
  const lines = all.filter((entry) => entry.samples >= last * (1 - view.span));
  const simple = Object.entries(run.about.simple).map(([name, words]) => [name, words, name]);
  const curves = [["loss", "this model", "model"], ...simple];
  const present = curves.filter(([name]) => all.some((entry) => isNumber(entry[name])));
  const legend = get("legend");
  const kept = [...legend.children].map((child) => child.dataset.curve).join();
  if (kept !== present.map(([name]) => name).join()) {
    legend.replaceChildren(...present.map(([name, label, kind]) => {
      const button = make("button", { type: "button", "data-curve": name, "aria-pressed": !view.hidden.has(name) },
        make("span", { class: `swatch ${kind}` }), label);
      button.addEventListener("click", () => {
        view.hidden.has(name) ? view.hidden.delete(name) : view.hidden.add(name);
        button.setAttribute("aria-pressed", !view.hidden.has(name));
        showLoss();
      });
      return button;
    }));
  }
  const shown = present.filter(([name]) => !view.hidden.has(name));
  if (lines.length < 2) return empty(get("loss"), "Waiting for the first lines of metrics");
  // The first losses may be very large: values far above nearly all others are cut off.
  const values = shown.flatMap(([name]) => lines.map((entry) => entry[name])).filter(isNumber).sort((a, b) => a - b);
  const most = values[Math.floor(0.97 * (values.length - 1))];
  const log = values[0] > 0 && values[values.length - 1] > 20 * values[0];
  const ys = log ? [values[0], values[values.length - 1]] : spread(values.filter((value) => value <= most * 1.5 + 1e-9));
  if (!log && values[0] >= 0) ys[0] = Math.max(0, ys[0]);
  const { x, y, bottom } = frame(get("loss"), [lines[0].samples, last], ys, { log, label: timeOf(lines) });
  markDrift(get("loss"), lines, x, bottom);
  for (const [name, , kind] of shown.slice().reverse()) {
    const points = lines.map((entry) => [x(entry.samples), isNumber(entry[name]) ? Math.max(y(entry[name]), 2) : null]);
    line(get("loss"), points, kind);
  }
  const latest = all[all.length - 1];
  const beside = present.filter(([name]) => name !== "loss" && isNumber(latest[name]));
  const best = beside.sort((a, b) => latest[a[0]] - latest[b[0]])[0];
  let text = `${run.about.unit}, by samples.`;
  if (best && isNumber(latest.loss)) {
    const better = latest.loss <= latest[best[0]];
    text += ` In the latest interval the model is ${better ? "better" : "worse"} than the best baseline (${best[1]}): `
      + `${short(latest.loss)} against ${short(latest[best[0]])}.`;
  }
  get("loss-words").textContent = text;
}

// The time at a number of samples, if the table has times.
function timeOf(lines) {
  if (!lines.every((entry) => entry.time)) return short;
  return (samples) => {
    const text = String((lines.find((entry) => entry.samples >= samples) || lines[lines.length - 1]).time);
    return text.slice(0, 16).replace("T", " ");
  };
}

function markDrift(svg, lines, x, bottom) {
  for (const alarm of lines.flatMap((entry) => entry.drift || [])) {
    if (alarm.sample >= lines[0].samples) svg.append(draw("line", { class: "drift", x1: x(alarm.sample), x2: x(alarm.sample), y1: 8, y2: bottom }));
  }
}

// The members of a mixture.

const AREAS = 6;

function showMembers() {
  const lines = run.metrics.filter((entry) => entry.weights);
  get("members-section").hidden = lines.length < 2;
  if (lines.length < 2) return;
  const totals = {};
  lines.forEach((entry, place) => {
    const rows = entry.samples - (place ? lines[place - 1].samples : 0);
    for (const [name, weight] of Object.entries(entry.weights)) totals[name] = (totals[name] || 0) + rows * weight;
  });
  const names = Object.keys(totals).sort((a, b) => totals[b] - totals[a]).slice(0, AREAS);
  const svg = get("members");
  const { x, y, bottom } = frame(svg, [0, lines[lines.length - 1].samples], [0, 1], { label: timeOf(lines) });
  lines.forEach((entry, place) => {
    const from = x(place ? lines[place - 1].samples : 0);
    let below = 0;
    names.forEach((name, number) => {
      const weight = entry.weights[name] || 0;
      svg.append(draw("rect", { class: `area${number}`, x: from, width: Math.max(x(entry.samples) - from, 0.3), y: y(below + weight), height: y(below) - y(below + weight) }));
      below += weight;
    });
  });
  markDrift(svg, lines, x, bottom);
  const latest = lines[lines.length - 1].weights;
  get("members-legend").replaceChildren(...names.map((name, number) => make("span", {},
    make("span", { class: `swatch block area${number}` }), `${name}: ${Math.round(100 * (latest[name] || 0))} %`)));
  const alarms = run.metrics.flatMap((entry) => entry.drift || []);
  const describe = (alarm) => `row ${short(alarm.sample)}${alarm.time ? ` (${alarm.time})` : ""}: `
    + (alarm.of === "errors" ? `larger errors of ${alarm.column}, from about row ${short(alarm.since)} on` : "the weight has moved to other members");
  get("drift-words").textContent = alarms.length ? `Drift. ${alarms.slice(-3).map(describe).join("; ")}.` : "No drift.";
}

// The latest data.

function inner(value, target) {
  if (value === null || typeof value !== "object") return undefined;
  if (target in value) return value[target];
  const nearest = Object.values(value)[0];
  return nearest && typeof nearest === "object" ? nearest[target] : undefined;
}

function isText() { return !run.about.has_rows; }

function targets() {
  const named = run.about.columns ? run.about.columns.targets : [];
  return run.about.loss === "classes" ? [] : named;
}

function showRows() {
  const rows = run.rows;
  const choices = targets();
  const select = get("target");
  if (select.children.length !== choices.length) {
    select.replaceChildren(...choices.map((name) => make("option", { value: name, text: name })));
    view.target = choices[0];
  }
  get("target-label").hidden = choices.length < 2;
  const numbers = choices.length > 0;
  for (const id of ["rows", "rows-legend"]) get(id).toggleAttribute("hidden", !numbers);
  get("symbols").toggleAttribute("hidden", numbers);
  if (numbers) showSeries(rowsOfKey(rows)); else showSymbols(rows);
  showSurprise(rows);
  showTop(rows);
}

// Rows of several keys do not form a series. Show those of one key, at first the one with the most rows here.
function rowsOfKey(rows) {
  const counts = new Map();
  for (const { key } of rows) if (key !== undefined) counts.set(String(key), (counts.get(String(key)) || 0) + 1);
  if (!counts.size) return rows;
  if (view.key === null) view.key = [...counts].sort((a, b) => b[1] - a[1])[0][0];
  return rows.filter(({ key }) => String(key) === view.key);
}

function showSeries(rows) {
  const svg = get("rows");
  const whose = view.key === null ? "" : ` of ${view.key}`;
  if (rows.length < 2) return empty(svg, whose ? `Fewer than two of the latest rows belong to ${view.key}` : "No rows yet");
  const target = view.target;
  const points = rows.map((row) => [row.sample, inner(row.target, target), inner(row.prediction, target)]);
  const latest = rows[rows.length - 1];
  const ahead = isNumber(latest.for) ? [latest.for, inner(latest.forecast, target)] : null;
  const last = ahead ? Math.max(latest.sample, ahead[0]) : latest.sample;
  const { x, y } = frame(svg, [rows[0].sample, last], spread(points.flatMap(([, actual, forecast]) => [actual, forecast])));
  line(svg, points.map(([at, came]) => [x(at), isNumber(came) ? y(came) : null]), "value");
  line(svg, points.map(([at, , forecast]) => [x(at), isNumber(forecast) ? y(forecast) : null]), "model dashed");
  const waiting = rows.filter((row) => isNumber(row.for) && row.for > latest.sample);
  for (const row of waiting) {
    const forecast = inner(row.forecast, target);
    if (isNumber(forecast)) svg.append(draw("circle", { class: "ahead", cx: x(row.for), cy: y(forecast), r: waiting.length > 40 ? 1.5 : 3 }));
  }
  const key = (kind, text) => make("span", {}, make("span", { class: `swatch ${kind}` }), text);
  get("rows-legend").replaceChildren(key("value-ink", `${target}${whose}`), key("model", "forecasts; dots: future rows"));
}

function showSymbols(rows) {
  const limits = [4, 8, 12];
  const pieces = rows.map((row) => {
    let text = row.text ?? row.symbol ?? row.target ?? "";
    if (isByte(text)) text = text === 10 || isPrinted(text) ? String.fromCharCode(text) : "·";
    const size = row.surprise ?? row.bits ?? 0;
    const level = limits.filter((limit) => size > limit).length;
    const many = row.text !== undefined || row.target !== undefined;
    return make("i", { class: `s${level}`, title: `surprise ${short(size)}`, text: many ? `${words(text)}${row.text !== undefined ? "\n" : " "}` : text });
  });
  get("symbols").replaceChildren(...pieces);
  if (!rows.length) get("symbols").textContent = "Nothing yet.";
}

const isByte = (value) => run.about.kind === "bytes" && isNumber(value);
const isPrinted = (byte) => byte > 31 && byte < 127;
const named = (value) => isByte(value) ? (isPrinted(value) ? `“${String.fromCharCode(value)}”` : `byte ${value}`) : words(value);
const surpriseOf = (row) => row.surprise ?? row.bits ?? null;
const rarityOf = (row) => row.score ?? surpriseOf(row);

function showSurprise(rows) {
  const svg = get("surprise");
  const known = rows.map(surpriseOf).filter(isNumber);
  if (!known.length) return empty(svg, "No surprise values yet");
  const sorted = known.slice().sort((a, b) => a - b);
  const usual = sorted[Math.floor(sorted.length / 2)];
  const high = Math.max(4 * usual, usual + 1e-9);
  const first = rows[0].sample ?? rows[0].line ?? 0;
  const last = first + rows.length;
  const { x, y, bottom } = frame(svg, [first, last], [0, Math.max(sorted[sorted.length - 1] * 1.05, 1e-9)]);
  const width = Math.max(1, (x(last) - x(first)) / rows.length - 1);
  rows.forEach((row, place) => {
    const size = surpriseOf(row);
    if (!isNumber(size)) return;
    svg.append(draw("rect", { class: size > high ? "high" : "", x: x(first + place), y: y(size), width, height: Math.max(0.5, bottom - y(size)) }));
  });
  get("rows-words").textContent = `The latest ${rows.length} samples. The median surprise is ${short(usual)}; red bars are more than four times that.`;
}

function showTop(rows) {
  const best = rows.filter((row) => isNumber(surpriseOf(row))).sort((a, b) => rarityOf(b) - rarityOf(a)).slice(0, 8);
  get("top").replaceChildren(...best.map((row) => make("tr", {},
    make("td", {}, make("span", { class: "whole", text: words(row.sample ?? row.line) }), row.key === undefined ? "" : ` (${row.key})`),
    make("td", { text: named(row.prediction) }), make("td", { text: named(row.target ?? row.symbol ?? row.text) }),
    make("td", { text: short(surpriseOf(row)) }))));
}

// The status of the run.

function tile(name, value, more = "", kind = "") {
  return make("li", {}, make("div", { class: "name", text: name }), make("div", { class: `value ${kind}`, text: value }),
    make("div", { class: "more", text: more }));
}

function remember(status) {
  run.status = status;
  history.push([performance.now() / 1000, status]);
  if (history.length > 11) history.shift();
}

function rateOf(name) {
  const [[began, before], [now, latest]] = [history[0], history[history.length - 1]];
  return now > began && isNumber(latest[name]) ? (latest[name] - before[name]) / (now - began) : undefined;
}

function showStatus() {
  const now = run.status;
  const latest = run.metrics[run.metrics.length - 1] || {};
  const rate = rateOf("samples") ?? 0;
  const predicting = rateOf("predicted");
  const speed = rate || !isNumber(now.speed) ? rate : now.speed;
  const trouble = now.diverged || now.divergence === "suspicious";
  const tiles = [
    tile("Samples", short(now.samples ?? 0), isNumber(now.durable) ? `saved up to ${short(now.durable)}` : ""),
    tile("Throughput", `${short(speed)} / s`, isNumber(predicting) ? `predicting ${short(predicting)} / s` : speed ? "learning" : "idle"),
    tile("Loss", short(latest.loss), isNumber(latest.baseline) ? `${run.about.simple.baseline}: ${short(latest.baseline)}` : "", latest.loss > latest.baseline ? "bad" : ""),
    tile("Divergence", now.diverged ? "diverged" : now.divergence ?? "–",
      now.diverged ? now.divergence : run.about.stop_if_diverged === false ? "turned off" : `carry ${short(latest.carry)} of ${short(run.about.carry_limit)}`, trouble ? "bad" : "good"),
  ];
  if (isNumber(latest.alarms)) tiles.push(tile("Drift", short(latest.alarms), "alarms since the start"));
  if (isNumber(now.queue)) tiles.push(tile("Waiting", short(now.queue), `rows to learn from; ${short(now.waiting ?? 0)} awaiting labels`));
  else if ("silent" in now) tiles.push(tile("Latest line", isNumber(now.silent) ? ago(now.silent) : "–", "of metrics"));
  for (const [name, what] of Object.entries(run.about.tiles)) {
    if (isNumber(latest[name])) tiles.push(tile("Method", short(latest[name]), what));
  }
  get("tiles").replaceChildren(...tiles);
  const keys = now.keys || [];
  get("keys-section").hidden = !keys.length;
  get("keys").replaceChildren(...keys.map((entry) => make("tr", {}, make("td", {}, keyButton(entry.key)),
    make("td", { text: short(entry.mean) }), make("td", { text: short(entry.last) }), make("td", { text: short(entry.rows) }))));
}

function keyButton(key) {
  const button = make("button", { type: "button", class: "key", title: "Show the latest rows of this key", text: key });
  button.addEventListener("click", () => { view.key = key; showRows(); });
  return button;
}

function showAbout() {
  const { about } = run;
  document.title = `${about.name} – norewind`;
  get("name").textContent = about.name;
  const ahead = about.columns ? `${about.columns.targets.slice(0, 4).join(", ")}, ${about.columns.steps.join(", ")} ahead` : "the next symbol";
  get("about").textContent = `${about.model} · ${ahead} · ${about.source}`;
  get("top-what").textContent = isText() ? "symbol" : "row";
  get("rows-title").textContent = isText() ? "Latest symbols" : "Latest rows with their forecasts";
}

// Why.

const PARTS = 12, WHY_MILLISECONDS = 5000;
let whyAsked = 0, whyAnswer = null;

async function askWhy() {
  if (isText() || whyAsked === Infinity || Date.now() - whyAsked < WHY_MILLISECONDS) return;
  whyAsked = Date.now();
  const answer = await fetch("/explain").catch(() => null);
  if (answer && [400, 404].includes(answer.status)) whyAsked = Infinity; // it cannot be explained
  whyAnswer = answer && answer.ok ? await answer.json() : null;
  showWhy();
}

function showWhy() {
  const found = whyAnswer && whyAnswer.forecast;
  get("why-section").hidden = !found;
  if (!found) return;
  const name = view.target in found ? view.target : Object.keys(found)[0];
  const { forecast, parts } = found[name];
  const rest = parts.slice(PARTS).reduce((sum, part) => sum + part.adds, 0);
  const shown = [...parts.slice(0, PARTS), ...(parts.length > PARTS ? [{ from: `${parts.length - PARTS} others`, adds: rest }] : [])];
  get("why-words").textContent = `The forecast of ${name} in row ${whyAnswer.for} is ${short(forecast)}: the sum of these parts.`;
  get("why").replaceChildren(...shown.map((part) => make("tr", {}, make("td", {}, part.from), make("td", {}, short(part.adds)))));
  const unusual = (whyAnswer.unusual || []).slice(0, 3).map((row) => `row ${short(row.sample)}: ${row.column} was ${short(row.value)}, expected ${short(row.expected)}`);
  get("unusual-words").textContent = unusual.length ? `The most unusual of the latest rows. ${unusual.join("; ")}.` : "";
}

function show() { showStatus(); showLoss(); showMembers(); showRows(); askWhy(); }

// Events.

function connect() {
  const events = new EventSource("/events");
  const link = (text, kind) => { get("link").textContent = text; get("link").className = `pill ${kind}`; };
  events.addEventListener("start", (event) => {
    Object.assign(run, JSON.parse(event.data));
    history.length = 0;
    remember(run.status);
    run.rows = run.rows.slice(-RECENT);
    link("live", "good");
    showAbout();
    show();
  });
  events.addEventListener("tick", (event) => {
    const news = JSON.parse(event.data);
    run.metrics.push(...news.metrics);
    run.rows = run.rows.concat(news.rows).slice(-RECENT);
    remember(news.status);
    if (view.paused) return;
    showStatus();
    if (news.metrics.length) { showLoss(); showMembers(); }
    if (news.rows.length) { showRows(); askWhy(); }
  });
  events.addEventListener("error", () => link(events.readyState === EventSource.CLOSED ? "ended" : "reconnecting", "bad"));
}

function setUp() {
  get("pause").addEventListener("click", () => {
    view.paused = !view.paused;
    get("pause").setAttribute("aria-pressed", view.paused);
    get("pause").textContent = view.paused ? "Resume" : "Pause";
    if (!view.paused) show();
  });
  const root = document.documentElement;
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => { get("theme").textContent = dark() ? "Light" : "Dark"; };
  get("theme").addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; label(); });
  label();
  get("span").addEventListener("click", (event) => {
    const span = event.target.dataset.span;
    if (!span) return;
    view.span = Number(span);
    for (const button of get("span").children) button.setAttribute("aria-pressed", button === event.target);
    showLoss();
  });
  get("target").addEventListener("change", (event) => { view.target = event.target.value; showRows(); showWhy(); });
  addEventListener("resize", () => { if (run.about.name) show(); });
  connect();
}

setUp();
