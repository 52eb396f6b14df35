"use strict";
// The server sends the parts of the board as they change: {"job/NAME": ..., "table/NAME": ..., "events": ...}. Each is drawn by
// itself. All text is set as text, so nothing that a table holds becomes HTML.
const parts = {};
const $ = (id) => document.getElementById(id);
const LETTERS = { EQUAL: "E", DIFFERENT: "D", PENDING: "P", UNVERIFIABLE: "U", OPEN: "·" };
const COLOURS = ["--open", "--E", "--P", "--D", "--U", "--dim"], DASHES = ["", "6 3", "2 3"];
const TARGETS = ["target", "table", "state", "version", "table_version", "rows_sent", "remarks"];
const SVG = ["svg", "g", "rect", "line", "text", "polyline", "title"];

function h(name, given, ...children) {
  const made = SVG.includes(name) ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(given || {}))
    if (key.startsWith("on")) made[key] = value;
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  made.append(...some(children));
  return made;
}
const some = (...list) => list.flat(Infinity).filter((each) => each || each === 0);
const number = (n) => n === null || n === undefined ? "–" : n.toLocaleString("en-US", { maximumFractionDigits: n < 10 ? 1 : 0 });
const short = (at) => at ? at.slice(0, 19).replace("T", " ").replace("Z", "") : "–";
const shown = (value) => value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);
const div = (kind, ...children) => h("div", { class: kind || null }, ...children);
const dim = (...children) => h("span", { class: "dim" }, ...children);

function age(at) {
  const s = Math.max(0, (Date.now() - Date.parse(at)) / 1000);
  if (s < 90) return `${Math.round(s)} s`;
  return s < 5400 ? `${Math.round(s / 60)} min` : s < 129600 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}
// a time that goes on, as the browser counts it
const since = (at, before, after = "") =>
  at && h("span", { class: "dim", "data-at": at, "data-before": before, "data-after": after, title: at }, before + age(at) + after);

const copied = (text) => h("span", { class: "command" }, h("code", {}, text),
  h("button", { "aria-label": `copy ${text}`, "data-copy": text, onclick: (event) => copy(event.currentTarget) }, "copy"));
async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "copied";
  } catch { button.textContent = "select it"; }
  setTimeout(() => { button.textContent = "copy"; }, 1500);
}

// An element takes the place of the one with its id; what had the focus in it has it again.
function put(parent, id, made) {
  const old = $(id), at = old ? [...old.querySelectorAll("a, button")].indexOf(document.activeElement) : -1;
  made.id = id;
  if (old) old.replaceWith(made); else parent.append(made);
  if (at >= 0) made.querySelectorAll("a, button")[at]?.focus();
}

// ---- the board

function job(j) {
  const ended = ["dead", "failed", "crash_loop"].includes(j.state);
  return h("li", {}, h("strong", {}, j.job), " ", h("span", { class: `state ${j.state}` }, j.state.replace("_", " ")), " ",
    j.life && [since(j.life.since, "for "), dim(` · pid ${j.life.pid}${j.life.megabytes ? ` · ${j.life.megabytes} MB` : ""}`)],
    j.restarts > 0 && div("warn", `restarts: ${j.restarts}, the last because ${j.why}`),
    some(j.stage, j.freshness, j.place).map((line) => div("dim", line)),
    ended && div("bad", `its process has ended${j.wanted && `, and it is to be ${j.wanted}`}`),
    some(j.troubles, j.unreadable).map((line) => div("bad", line)), j.command && copied(j.command));
}

function flow(f) {
  if (f === undefined) return "–";
  if (f === null) return dim("batch runs fill it");
  if (!f?.commits) return dim("no commit yet");
  const names = "used" in f ? ["used", "late"] : ["written", "quarantined", "late", "filtered"];
  const says = names.filter((name, i) => !i || f[name]).map((name) => `${number(f[name])} ${name}`);
  return div("", h("div", { class: "flow", role: "img", "aria-label": says.join(", ") },
    names.filter((name) => f[name] > 0).map((name) => h("i", { class: name, style: `flex:${f[name]}`, title: `${number(f[name])} ${name}` }))),
    div("", `${number(f.in)} in = ${says.join(" + ")}`),
    "results" in f && div("", `→ ${number(f.results)} results written, ${number(f.quarantined)} quarantined`),
    div("dim", `in its last ${number(f.commits)} commits${"used" in f ? ", a row once for each of its windows" : ""}`));
}

const letter = (verdict, reconciled) => LETTERS[verdict] || (reconciled ? "?" : "–");
const colour = (verdict) => verdict === "OPEN" ? "open" : LETTERS[verdict] || "N";
const about = ([key, verdict, writer, rows], reconciled) => `${key}: ` +
  (verdict === "OPEN" ? "open" : verdict || (reconciled ? "closed, no verdict yet" : "closed")) +
  (rows ? `, ${number(rows)} rows, last written by ${writer === "batch" ? "a batch run" : "the stream"}` : ", no row");

function hours(t) {
  if (!t.hours?.length)
    return t.verdict && h("span", { class: `h ${colour(t.verdict)}`, title: `the whole table: ${t.verdict}` }, letter(t.verdict));
  const open = t.reconciled ? t.hours.findIndex((each) => each[1] === "OPEN") : -1, counts = {};
  for (const [, verdict] of t.hours) counts[verdict || "closed"] = (counts[verdict || "closed"] || 0) + 1;
  const says = Object.entries(counts).map(([name, n]) => `${n} ${name}`).join(", ");
  const frontier = () => h("span", { class: "mark", title: "the frontier: batch runs may rewrite what is before it, the stream appends after it" });
  return div("", h("div", { class: "hours", role: "img", "aria-label": says }, t.hours.map((each, i) => [i === open && frontier(),
    h("span", { class: `h ${colour(each[1])} ${each[2]}`, title: about(each, t.reconciled) }, letter(each[1], t.reconciled))])),
    dim([...new Set([t.hours[0][0], t.hours.at(-1)[0]])].join(" to "), t.kind === "ingest" && ", by arrival"));
}

function lag(t) {
  const up = t.inherited;
  return div("", t.unread === null ? "–" : t.unread ? `${number(t.unread)} ${t.unit}` : "0",
    t.behind && div("", since(t.behind, "unread for ")),
    up && div("dim", `from ${up.table}: `, up.unread ? `${number(up.unread)} ${up.unit} ` : "", since(up.behind, "unread for ")));
}

function lane(t) {
  const bad = some(t.unreadable && `cannot be read: ${t.unreadable}`, t.trouble,
    t.dropped > 0 && `Spark dropped ${number(t.dropped)} rows: they are missing`);
  const waits = some(bad.map((line) => div("bad", line)), t.waits,
    t.verdict === "DIFFERENT" && copied(`lakehouse reconcile status ${t.table}`),
    t.verdict === "PENDING" && copied(`lakehouse reconcile run ${t.table}`),
    t.flow?.quarantined > 0 && copied(`lakehouse table quarantine ${t.table}`));
  const frontier = div("", div("", t.frontier ? short(t.frontier) : t.flow || !(t.version >= 0) ? "none yet" : `version ${t.version}`), t.frontier && since(t.moved, "moved ", " ago"));
  const cells = { "rows/s": number(t.rate), lag: lag(t), frontier, "rows in": flow(t.flow), hours: hours(t),
    "waits for": waits.length > 0 && div("", waits) };
  return h("tr", { role: "row", "data-version": t.version },
    h("th", { role: "rowheader", scope: "row" }, h("a", { href: `#${t.table}`, title: t.description }, t.table),
      div("dim", `${t.kind} · ${t.pipeline}`, t.state && t.state !== "running" && ` · ${t.state}`)),
    Object.entries(cells).map(([label, value]) => h("td", { role: "cell", "data-label": label }, value)));
}

function event(e) {
  const grave = { DIFFERENT: "bad", crash_loop: "bad", restarted: "warn", killed: "warn", PENDING: "warn" }[e.what];
  return h("li", {}, h("time", { datetime: e.at }, short(e.at)), h("b", { class: grave }, e.what.replace("_", " ")),
    h("span", {}, e.of), dim(e.why));
}

// A board that was started again may have other tables: what it does not send is gone.
function forget(all) {
  for (const name of Object.keys(parts).filter((name) => !(name in all))) {
    delete parts[name];
    $(name)?.remove();
  }
}

function draw(changed) {
  Object.assign(parts, changed);
  const { root, is_there, why_empty } = parts.lakehouse;
  $("root").textContent = root;
  const notes = some(is_there === false && `root=${root}: the folder is not there; mount it, or start a job, which makes it`, why_empty,
    ["certificates", "events"].map((name) => parts[name].unreadable && `${name} cannot be read: ${parts[name].unreadable}`));
  $("notes").replaceChildren(...notes.map((line) => h("p", { class: "note" }, line)));
  for (const [name, value] of Object.entries(changed))
    if (name.startsWith("job/")) put($("jobs"), name, job(value));
    else if (name.startsWith("table/")) put($("lanes"), name, lane(value));
  const targets = Object.keys(parts).filter((name) => name.startsWith("target/")).map((name) => parts[name]);
  $("targets-s").hidden = !targets.length;
  if (targets.length)
    $("targets").replaceChildren(grid(TARGETS.map((name) => name.replace("_", " ")), targets.map((row) =>
      TARGETS.map((name) => shown(name === "remarks" && row.unreadable ? `cannot be read: ${row.unreadable}` : row[name])))));
  if (changed.events)
    $("events").replaceChildren(...(changed.events.last?.length ? changed.events.last.map(event) : [dim("nothing has happened yet")]));
  if (`table/${here()}` in changed) page();
}

// ---- the page of a table

const here = () => {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; }
};
const grid = (head, rows) => div("wide", h("table", {}, h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
  h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value) => h("td", {}, value)))))));
const facts = (given) => h("dl", { class: "facts" }, Object.entries(given).map(([name, value]) =>
  [h("dt", {}, name), h("dd", {}, Array.isArray(value) ? value.map((each) => div("", each)) : value)]));

function plot(list, reconciled) {
  const w = 960, top = Math.max(1, ...list.map((each) => each[3])), step = Math.min(60, (w - 80) / list.length);
  const open = reconciled ? list.findIndex((each) => each[1] === "OPEN") : -1, x = (i) => 76 + i * step;
  return div("wide", h("svg", { viewBox: `0 0 ${w} 190`, role: "img", "aria-label": "rows of each hour or day, coloured by verdict" },
    h("text", { x: 4, y: 14 }, number(top)), h("line", { class: "grid", x1: 74, x2: w, y1: 150, y2: 150 }),
    list.map((each, i) => {
      const high = (each[3] / top) * 140, bar = { class: colour(each[1]), x: x(i), y: 150 - high, width: Math.max(1, step - 2), height: high };
      return h("g", {}, h("title", {}, about(each, reconciled)), h("rect", bar),
        step > 9 && h("text", { class: "letter", x: x(i) + step / 2 - 4, y: 164 }, letter(each[1], reconciled)));
    }),
    open >= 0 && h("line", { class: "frontier", x1: x(open) - 1, x2: x(open) - 1, y1: 4, y2: 168 }), h("text", { x: 76, y: 184 }, list[0][0]),
    list.length > 1 && h("text", { x: Math.max(x(list.length), 240), y: 184, "text-anchor": "end" }, list.at(-1)[0])));
}

function lines({ metric, points }) {
  const keys = [...new Set(points.map((point) => point[1]))].slice(0, COLOURS.length), w = 960;
  const drawn = points.filter((point) => keys.includes(point[1])).reverse(), values = drawn.map((point) => point[2]);
  const [t0, t1] = [drawn[0][0], drawn.at(-1)[0]].map(Date.parse), [low, high] = [Math.min(...values), Math.max(...values)];
  const place = ([at, , value]) => `${60 + ((Date.parse(at) - t0) / (t1 - t0 || 1)) * (w - 70)},${150 - ((value - low) / (high - low || 1)) * 135}`;
  const line = (key, i) => h("polyline", { style: `stroke:var(${COLOURS[i]})`, "stroke-dasharray": DASHES[i % 3],
    points: drawn.filter((point) => point[1] === key).map(place).join(" ") }, h("title", {}, key));
  return [div("wide", h("svg", { viewBox: `0 0 ${w} 190`, role: "img", "aria-label": `${metric} of the windows that closed last` },
    h("text", { x: 4, y: 20 }, number(high)), h("text", { x: 4, y: 152 }, number(low)), h("line", { class: "grid", x1: 60, x2: w, y1: 150, y2: 150 }),
    keys.map(line), h("text", { x: 60, y: 184 }, short(drawn[0][0])), h("text", { x: w - 4, y: 184, "text-anchor": "end" }, short(drawn.at(-1)[0])))),
  h("p", { class: "legend" }, keys.map((key, i) => h("span", {}, h("b", { style: `color:var(${COLOURS[i]})` }, ["━", "╍", "┅"][i % 3]), key)),
    points.length > drawn.length && "and more keys")];
}

let asked = 0;
async function page() {
  const t = parts[`table/${here()}`], mine = ++asked;
  $("board").hidden = Boolean(t);
  $("page").hidden = !t;
  if (!t) return;
  const d = await fetch(`tables/${encodeURIComponent(t.table)}`).then((answer) => answer.json())
    .catch((error) => ({ unreadable: `the board has not answered (${error})` }));
  if (mine !== asked) return; // another answer is on its way
  const focus = [...$("page").querySelectorAll("a, button")].indexOf(document.activeElement), none = (text) => h("p", { class: "dim" }, text);
  const commit = (c) => [c.version < 0 ? "nothing new" : c.version, c.role, short(c.at), c.role === "stream" ? number(c.arrived) : "–",
    number(c.written), number(c.late), number(c.quarantined), c.range ? c.range.map(short).join(" to ") : short(c.frontier)];
  const reads = Object.fromEntries(Object.entries(d.reads || {}).map(([name, value]) => [`reads ${name}`, value]));
  $("page").replaceChildren(...some(
    h("p", {}, h("a", { href: "#" }, "← board")),
    h("h1", {}, t.table, " ", t.verdict && h("span", { class: `h ${colour(t.verdict)}`, title: t.verdict }, letter(t.verdict))), none(t.description),
    some(d.unreadable, t.unreadable).map((line) => h("p", { class: "note bad" }, `cannot be read: ${line}`)),
    h("p", {}, `${t.kind} table of ${t.pipeline} · version ${t.version} · complete up to ${short(t.frontier)} `, t.frontier && since(t.moved, "(moved ", " ago)")),
    t.waits && h("p", { class: "note" }, t.waits), flow(t.flow),
    h("h2", {}, "Rows and verdicts"),
    d.hours?.length ? plot(d.hours, t.reconciled) : none("it has no hours or days: it is reconciled whole, or holds no row yet"),
    d.windows && [h("h2", {}, `Last windows: ${d.windows.metric}`), d.windows.points.length ? lines(d.windows) : none("no window has closed yet")],
    h("h2", {}, "Commands"), facts(Object.fromEntries(Object.entries(d.commands || {}).map(([name, text]) => [name, copied(text)]))),
    div("cols", h("section", {}, h("h2", {}, "Declaration"), facts({ ...d.declaration, ...reads, ...(d.beside && { "version beside": d.beside }) })),
      h("section", {}, h("h2", {}, "Columns"), grid(["column", "type"], Object.entries(d.columns || {})))),
    h("h2", {}, "Quarantine"), d.reasons?.length ? [grid(["rows", "reason"], d.reasons.map(([n, reason]) => [number(n), reason])),
      grid(Object.keys(d.quarantined[0]), d.quarantined.map((row) => Object.values(row).map(shown)))] : none("no row is quarantined"),
    h("h2", {}, "Last commits"), d.commits?.length ? grid(["version", "by", "at", "rows in", "written", "late", "quarantined", "frontier or range"],
      d.commits.map(commit)) : none("no commit yet: start its job")));
  if (focus >= 0) $("page").querySelectorAll("a, button")[focus]?.focus();
}

// ---- what moves it

let source, heard, isWhole; // isWhole: the next message has all parts, as the first of each connection
function say(kind, text) {
  $("live").className = kind;
  if ($("live").textContent !== text) $("live").textContent = text;
}
function listen() {
  source?.close();
  source = new EventSource("events");
  [heard, isWhole] = [Date.now(), true];
  source.onopen = () => { isWhole = true; };
  source.onmessage = (message) => {
    const changed = JSON.parse(message.data);
    if (isWhole) forget(changed);
    [heard, isWhole] = [Date.now(), false];
    draw(changed);
    say("on", "live");
  };
  source.onerror = () => say("off", "the board does not answer; it is asked again");
}
// The board sends something every 10 s. A connection that was lost while the computer slept is silent, and raises no error.
// After an answer that is no stream, such as a proxy's, a browser does not ask again by itself.
function watch() {
  const silent = Date.now() - heard;
  if (!isWhole && silent > 30000) {
    say("off", "the board has been silent for 30 s; it is asked again");
    listen();
  } else if (source.readyState === EventSource.CLOSED && silent > 3000) listen();
}

function theme(next) {
  const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = next || ((root.dataset.theme || system) === "dark" ? "light" : "dark");
  localStorage.setItem("theme", root.dataset.theme);
}

addEventListener("keydown", (pressed) => {
  if (pressed.ctrlKey || pressed.metaKey || pressed.altKey || $("help").open) return;
  const links = [...document.querySelectorAll("#lanes th a")], at = links.indexOf(document.activeElement);
  const doing = {
    j: () => links[Math.min(at + 1, links.length - 1)]?.focus(), k: () => links[Math.max(at - 1, 0)]?.focus(), t: () => theme(),
    c: () => document.activeElement.closest("tr, li, dd")?.querySelector("[data-copy]")?.click(),
    "?": () => $("help").showModal(), Escape: () => { location.hash = ""; },
  }[pressed.key];
  if (doing) { pressed.preventDefault(); doing(); }
});
addEventListener("hashchange", async (change) => {
  await page();
  scrollTo(0, 0);
  const left = new URL(change.oldURL).hash;
  (here() ? $("page").querySelector("a") : document.querySelector(`#lanes a[href="${left}"]`))?.focus();
});
$("theme").onclick = () => theme();
$("keys").onclick = () => $("help").showModal();
if (localStorage.getItem("theme")) theme(localStorage.getItem("theme"));
setInterval(() => {
  watch();
  for (const each of document.querySelectorAll("[data-at]")) each.textContent = each.dataset.before + age(each.dataset.at) + each.dataset.after;
}, 1000);
listen();
