"use strict";
// The server sends parts of the board as they change: {"job/NAME": ..., "table/NAME": ..., "events": ...}. Each is drawn anew by
// itself. All text is set as text, so nothing that a table holds becomes HTML.
const parts = {}, $ = (id) => document.getElementById(id);
const LETTERS = { EQUAL: "E", DIFFERENT: "D", PENDING: "P", UNVERIFIABLE: "U", OPEN: "·" };
const COLOURS = ["--open", "--E", "--P", "--D", "--U", "--dim"];

function h(name, given, ...children) {
  const svg = ["svg", "g", "rect", "line", "text", "polyline", "title"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(given || {}))
    if (key.startsWith("on")) made[key] = value;
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  made.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== "" && each !== false));
  return made;
}
const number = (n) => (n === null || n === undefined ? "–" : Number(n).toLocaleString("en-US", { maximumFractionDigits: n < 10 ? 1 : 0 }));
const short = (at) => (at ? at.slice(0, 19).replace("T", " ").replace("Z", "") : "–");
function age(at) {
  const s = Math.max(0, (Date.now() - Date.parse(at)) / 1000);
  return s < 90 ? `${Math.round(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : s < 129600 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}
const since = (at, before, after = "") => at && h("span", { class: "dim", "data-at": at, "data-before": before, "data-after": after, title: at }, before + age(at) + after);
const copied = (text) => h("span", { class: "command" }, h("code", {}, text),
  h("button", { "aria-label": `copy ${text}`, "data-copy": text, onclick: (e) => copy(e.currentTarget) }, "copy"));
async function copy(button) {
  try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = "copied"; } catch { button.textContent = "select it"; }
  setTimeout(() => { button.textContent = "copy"; }, 1500);
}

// An element takes the place of the one with its id; what had the focus in it has it again.
function put(parent, id, made, before = null) {
  const old = $(id), at = old && old.contains(document.activeElement) ? [...old.querySelectorAll("a, button")].indexOf(document.activeElement) : -1;
  made.id = id;
  if (old) old.replaceWith(made); else parent.insertBefore(made, before);
  if (at >= 0) made.querySelectorAll("a, button")[at]?.focus();
}

function job(j) {
  const dead = ["dead", "failed", "crash_loop"].includes(j.state);
  return h("li", {},
    h("strong", {}, j.job), " ", h("span", { class: `state ${j.state}` }, j.state), " ",
    j.alive && [since(j.since, "for "), h("span", { class: "dim" }, ` · pid ${j.pid} · ${Math.round((j.python + j.jvm) / 2 ** 20)} MB`)],
    j.restarts > 0 && h("div", { class: "warn" }, `${j.restarts} restarts; the last because ${j.why}`),
    [j.freshness, j.place].filter(Boolean).map((line) => h("div", { class: "dim" }, line)),
    dead && h("div", { class: "bad" }, `its process has ended${j.wanted ? `, and it is to be ${j.wanted}` : ""}`),
    [...(j.troubles || []), j.unreadable].filter(Boolean).map((line) => h("div", { class: "bad" }, line)),
    j.command && copied(j.command));
}

function flow(f) {
  if (!f || !f.commits) return h("span", { class: "dim" }, "no commit yet");
  const names = "used" in f ? ["used", "late"] : ["written", "quarantined", "late", "filtered"];
  const says = `${number(f.in)} in = ` + names.map((name) => `${number(f[name])} ${name}`).join(" + ");
  return [h("div", { class: "flow", role: "img", "aria-label": says },
    names.filter((name) => f[name] > 0).map((name) => h("i", { class: name === "used" ? "written" : name, style: `flex:${f[name]}`, title: `${number(f[name])} ${name}` }))),
  h("div", {}, says), "results" in f && h("div", {}, `→ ${number(f.results)} results written, ${number(f.quarantined)} quarantined`),
  h("div", { class: "dim" }, `in its last ${number(f.commits)} commits`)];
}

const letter = (verdict, reconciled) => LETTERS[verdict] || (reconciled ? "?" : "–");
const kind = (verdict) => (verdict === "OPEN" ? "open" : LETTERS[verdict] || "N");
const why = ([key, verdict, origin, rows], reconciled) =>
  `${key}: ${verdict === "OPEN" ? "open" : verdict || (reconciled ? "closed, no verdict yet" : "closed")}, ${number(rows)} rows` + (rows ? `, last written by ${origin === "batch" ? "a batch run" : "the stream"}` : "");
function hours(t) {
  if (!t.hours || !t.hours.length) return t.verdict && h("span", { class: `h ${kind(t.verdict)}`, title: `the whole table: ${t.verdict}` }, letter(t.verdict));
  const open = t.hours.findIndex((each) => each[1] === "OPEN"), counts = {};
  for (const each of t.hours) counts[each[1] || "closed"] = (counts[each[1] || "closed"] || 0) + 1;
  return [h("div", { class: "hours", role: "img", "aria-label": Object.entries(counts).map(([name, n]) => `${n} ${name}`).join(", ") },
    t.hours.map((each, i) => [i === open && h("span", { class: "mark", title: "the frontier: batch runs may rewrite what is before it, the stream appends after it" }),
      h("span", { class: `h ${kind(each[1])} ${each[2]}`, title: why(each, t.reconciled) }, letter(each[1], t.reconciled))])),
  h("span", { class: "dim" }, `${t.hours[0][0]} to ${t.hours[t.hours.length - 1][0]}`)];
}

function lag(t) {
  const own = t.unread ? `${number(t.unread)} ${t.unit}` : t.unread === 0 ? "0" : "–", up = t.inherited;
  return [own, t.behind && h("div", {}, since(t.behind, "unread for ")),
    up && h("div", { class: "dim" }, `from ${up.table}: `, up.unread ? `${number(up.unread)} ${up.unit} ` : "", since(up.behind, "unread for "))];
}

function lane(t) {
  const cell = (label, children, more) => h("td", { role: "cell", "data-label": label, ...more }, children);
  const bad = [t.unreadable && `cannot be read: ${t.unreadable}`, t.trouble, t.dropped > 0 && `Spark dropped ${number(t.dropped)} rows: they are missing`].filter(Boolean);
  return h("tr", { role: "row", "data-version": t.version },
    h("th", { role: "rowheader", scope: "row" }, h("a", { href: `#${t.table}`, title: t.description }, t.table),
      h("div", { class: "dim" }, `${t.kind} · ${t.pipeline}`, t.state && t.state !== "running" ? ` · ${t.state}` : "")),
    cell("rows/s", number(t.rate), { class: "n" }), cell("lag", lag(t)),
    cell("frontier", h("div", {}, t.frontier ? short(t.frontier) : "none yet", h("div", {}, t.frontier && since(t.moved, "moved ", " ago")))),
    cell("rows in", h("div", {}, flow(t.flow))), cell("hours", h("div", {}, hours(t))),
    cell("waits for", h("div", {}, bad.map((line) => h("div", { class: "bad" }, line)), t.waits || "",
      t.verdict === "DIFFERENT" && copied(`lakehouse reconcile status ${t.table}`), t.verdict === "PENDING" && copied(`lakehouse reconcile run ${t.table}`),
      t.flow && t.flow.quarantined > 0 && copied(`lakehouse table quarantine ${t.table}`))));
}

const grid = (head, rows) => h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
  h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value) => h("td", {}, value)))))));
const shown = (value) => (value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));

function plot(list, reconciled) {
  const w = 960, top = Math.max(1, ...list.map((each) => each[3])), step = (w - 50) / list.length, open = list.findIndex((each) => each[1] === "OPEN");
  return h("svg", { viewBox: `0 0 ${w} 190`, role: "img", "aria-label": "rows of each hour or day, coloured by verdict" },
    h("text", { x: 4, y: 14 }, number(top)), h("line", { class: "grid", x1: 44, x2: w, y1: 150, y2: 150 }),
    list.map((each, i) => { const high = (each[3] / top) * 140;
      return h("g", {}, h("title", {}, why(each, reconciled)), h("rect", { class: kind(each[1]), x: 46 + i * step, y: 150 - high, width: Math.max(1, step - 2), height: high }),
        step > 9 && h("text", { class: "letter", x: 46 + i * step + step / 2 - 4, y: 164 }, letter(each[1], reconciled))); }),
    open >= 0 && h("line", { class: "frontier", x1: 45 + open * step, x2: 45 + open * step, y1: 4, y2: 168 }),
    h("text", { x: 46, y: 184 }, list[0][0]), h("text", { x: w - 4, y: 184, "text-anchor": "end" }, list[list.length - 1][0]));
}

function lines({ metric, points }) {
  const keys = [...new Set(points.map((point) => point[1]))].slice(0, COLOURS.length), values = points.filter((p) => keys.includes(p[1])).reverse();
  const ends = values.map((p) => Date.parse(p[0])), all = values.map((p) => p[2]), w = 960;
  const [t0, t1, low, high] = [Math.min(...ends), Math.max(...ends), Math.min(...all), Math.max(...all)];
  const x = (at) => 60 + ((Date.parse(at) - t0) / (t1 - t0 || 1)) * (w - 70), y = (v) => 150 - ((v - low) / (high - low || 1)) * 135;
  return [h("svg", { viewBox: `0 0 ${w} 190`, role: "img", "aria-label": `${metric} of the windows that closed last` },
    h("text", { x: 4, y: 20 }, number(high)), h("text", { x: 4, y: 152 }, number(low)), h("line", { class: "grid", x1: 60, x2: w, y1: 150, y2: 150 }),
    keys.map((key, i) => h("polyline", { style: `stroke:var(${COLOURS[i]})`, "stroke-dasharray": ["", "6 3", "2 3"][i % 3], points: values.filter((p) => p[1] === key).map((p) => `${x(p[0])},${y(p[2])}`).join(" ") }, h("title", {}, key))),
    h("text", { x: 60, y: 184 }, short(values[0][0])), h("text", { x: w - 4, y: 184, "text-anchor": "end" }, short(values[values.length - 1][0]))),
  h("p", { class: "legend" }, keys.map((key, i) => h("span", {}, h("b", { style: `color:var(${COLOURS[i]})` }, ["━", "╍", "┅"][i % 3]), key)), points.length > values.length && "and more keys")];
}

let opened = "", asked = 0;
async function page() {
  opened = decodeURIComponent(location.hash.slice(1));
  const lanes = parts[`table/${opened}`], mine = ++asked;
  $("board").hidden = Boolean(lanes); $("page").hidden = !lanes;
  if (!lanes) return;
  const t = lanes, d = await (await fetch(`tables/${encodeURIComponent(opened)}`)).json().catch(() => ({ unreadable: "the board has ended" }));
  if (mine !== asked) return;
  const focus = $("page").contains(document.activeElement), none = (text) => h("p", { class: "dim" }, text);
  const declared = Object.entries(d.declaration || {}).map(([name, value]) => [h("dt", {}, name), h("dd", {}, Array.isArray(value) ? value.map((each) => h("div", {}, each)) : shown(value))]);
  const more = Object.entries(d.reads || {}).map(([name, value]) => [h("dt", {}, `reads ${name}`), h("dd", {}, value)]);
  $("page").replaceChildren(...[
    h("p", {}, h("a", { href: "#" }, "← board")), h("h1", {}, t.table, " ", t.verdict && h("span", { class: `h ${kind(t.verdict)}`, title: t.verdict }, letter(t.verdict))),
    h("p", { class: "dim" }, t.description), [d.unreadable, t.unreadable].filter(Boolean).map((line) => h("p", { class: "note bad" }, `cannot be read: ${line}`)),
    h("p", {}, `${t.kind} table of ${t.pipeline} · version ${t.version} · complete up to ${short(t.frontier)} `, t.frontier && since(t.moved, "(moved ", " ago)")), t.waits && h("p", { class: "note" }, t.waits), flow(t.flow),
    h("h2", {}, "Rows and verdicts"), d.hours && d.hours.length ? plot(d.hours, t.reconciled) : none("it has no hours or days: it is reconciled whole, or holds no row yet"),
    d.windows && [h("h2", {}, `Last windows: ${d.windows.metric}`), d.windows.points.length ? lines(d.windows) : none("no window has closed yet, or its files are gone")],
    h("h2", {}, "Commands"), h("dl", { class: "facts" }, Object.entries(d.commands || {}).map(([name, text]) => [h("dt", {}, name), h("dd", {}, copied(text))])),
    h("div", { class: "cols" }, h("section", {}, h("h2", {}, "Declaration"), h("dl", { class: "facts" }, declared, more, d.beside && [h("dt", {}, "version beside"), h("dd", {}, d.beside)])),
      h("section", {}, h("h2", {}, "Columns"), grid(["column", "type"], Object.entries(d.columns || {})))),
    h("h2", {}, "Quarantine"), d.reasons && d.reasons.length ? [grid(["rows", "reason"], d.reasons.map(([n, reason]) => [number(n), reason])),
      grid(Object.keys(d.quarantined[0]), d.quarantined.map((row) => Object.values(row).map(shown)))] : none("no row is quarantined"),
    h("h2", {}, "Last commits"), d.commits && d.commits.length ? grid(["version", "by", "at", "rows in", "written", "late", "quarantined", "frontier or range"],
      d.commits.map((c) => [c.version < 0 ? "nothing new" : c.version, c.role, short(c.at), c.role === "stream" ? number(c.arrived) : "–", number(c.written), number(c.late), number(c.quarantined), c.range ? c.range.map(short).join(" to ") : short(c.frontier)])) : none("no commit yet: start its job"),
  ].flat(Infinity).filter(Boolean));
  if (focus) $("page").querySelector("a").focus();
}

function draw(changed) {
  Object.assign(parts, changed);
  const about = parts.lakehouse || { tables: [] };
  $("root").textContent = about.root || "";
  $("empty").hidden = !about.why_empty; $("empty").textContent = about.why_empty || "";
  for (const [name, value] of Object.entries(changed))
    if (name.startsWith("job/")) put($("jobs"), name, job(value));
    else if (name.startsWith("table/")) put($("lanes"), name, lane(value));
  const targets = Object.entries(parts).filter(([name]) => name.startsWith("target/")).map(([, value]) => value);
  $("targets-s").hidden = !targets.length;
  if (targets.length) {
    $("targets-head").replaceChildren(h("tr", {}, Object.keys(targets[0]).map((name) => h("th", { scope: "col" }, name.replace("_", " ")))));
    $("targets").replaceChildren(...targets.map((row) => h("tr", {}, Object.values(row).map((value) => h("td", {}, shown(value))))));
  }
  if (changed.events) $("events").replaceChildren(...(changed.events.last || []).map((e) => h("li", {}, h("time", { datetime: e.at }, short(e.at)),
    h("b", { class: { DIFFERENT: "bad", crash_loop: "bad", restarted: "warn", killed: "warn", PENDING: "warn" }[e.what] || "" }, e.what.replace("_", " ")), h("span", {}, e.of), h("span", { class: "dim" }, e.why))),
    ...(changed.events.last || []).length ? [] : [h("li", { class: "dim" }, "nothing has happened yet")]);
  if (opened !== decodeURIComponent(location.hash.slice(1)) || `table/${opened}` in changed) page();
}

function listen() {
  const source = new EventSource("events"), live = $("live");
  source.onmessage = (event) => { live.className = "on"; live.textContent = "live"; draw(JSON.parse(event.data)); };
  source.onerror = () => { live.className = "off"; live.textContent = "the board does not answer; it is asked again"; };
  source.onopen = () => { live.className = "on"; live.textContent = "live"; };
}
function theme(next) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches, now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  document.documentElement.dataset.theme = next || (now === "dark" ? "light" : "dark");
  localStorage.setItem("theme", document.documentElement.dataset.theme);
}
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  const links = [...document.querySelectorAll("#lanes th a")], at = links.indexOf(document.activeElement);
  const doing = { j: () => links[Math.min(at + 1, links.length - 1)]?.focus(), k: () => links[Math.max(at - 1, 0)]?.focus(), t: () => theme(), "?": () => $("help").showModal(),
    Escape: () => { location.hash = ""; }, c: () => document.activeElement.closest("tr, li, dd")?.querySelector("[data-copy]")?.click() }[event.key];
  if (doing) { event.preventDefault(); doing(); }
});
addEventListener("hashchange", async () => { const left = opened; await page(); if (!opened) document.querySelector(`#lanes a[href="#${CSS.escape(left)}"]`)?.focus(); else { scrollTo(0, 0); $("page").querySelector("a")?.focus(); } });
$("theme").onclick = () => theme(); $("keys").onclick = () => $("help").showModal();
if (localStorage.getItem("theme")) theme(localStorage.getItem("theme"));
$("legend").append(...Object.entries({ E: "EQUAL", D: "DIFFERENT", P: "PENDING: to be reconciled again", U: "UNVERIFIABLE", N: "closed, no verdict yet (– : reconciled through what reads it)", open: "open: the stream appends" }).map(([name, text]) =>
  h("span", {}, h("span", { class: `h ${name}` }, { N: "?", open: "·" }[name] || name), text)), h("span", {}, h("span", { class: "h N batch" }, "?"), "written by a batch run"), h("span", {}, h("span", { class: "mark" }, " "), "the frontier: batch before it, stream after it"));
setInterval(() => { for (const each of document.querySelectorAll("[data-at]")) each.textContent = each.dataset.before + age(each.dataset.at) + each.dataset.after; }, 1000);
listen();
