// Reads /v1/events and shows what they say. The page is built anew from every event, and only what differs is
// changed in the document, so that what is open or has the focus stays. Whatever the server says becomes text.

const SVG = "http://www.w3.org/2000/svg";
const SAMPLES_KEPT = 600;
const GENERATIONS_KEPT = 32;
const SILENCE_MS = 40_000; // the server says something every 15 seconds
const HUES = 6;

const byId = (id) => document.getElementById(id);

// ---- elements -----------------------------------------------------------------------------------------------

/** An element; children are nodes or text, and those that are null are left out. */
function el(name, attributes = {}, ...children) {
  return build(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, name), attributes, children);
}

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value != null) node.setAttribute(name, value);
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

/** Makes the children of an element equal to fresh ones. Those with a `data-key` are known by it. */
function show(parent, ...children) {
  const fresh = children.flat().filter((child) => child != null);
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstChild;
  for (const child of fresh) {
    const node = typeof child === "string" ? document.createTextNode(child) : child;
    const key = node.dataset?.key;
    const old = key === undefined ? place : known.get(key);
    if (old == null || (key === undefined && !isAlike(old, node))) {
      parent.insertBefore(node, place);
      continue;
    }
    if (old === place) place = place.nextSibling;
    else parent.insertBefore(old, place);
    become(old, node);
  }
  while (place !== null) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

const isAlike = (old, fresh) => old.nodeName === fresh.nodeName && old.dataset?.key === fresh.dataset?.key;

function become(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes])
    if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  show(old, [...fresh.childNodes]);
}

// ---- words --------------------------------------------------------------------------------------------------

const number = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

const rate = (perSecond) => number(perSecond, perSecond < 100 ? 1 : 0);

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) [count, unit] = [count / 1024, unit + 1];
  return `${number(count, unit > 0 && count < 100 ? 1 : 0)} ${units[unit]}`;
}

/** Seconds, as people say them. */
function span(seconds) {
  if (seconds < 0.001) return `${number(seconds * 1e6)} µs`;
  if (seconds < 1) return `${number(seconds * 1e3, seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${number(seconds, seconds < 10 ? 2 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  const rest = Math.floor(seconds % 60);
  if (minutes < 60) return rest ? `${minutes} min ${rest} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const micro = (us) => span(us / 1e6);
const clock = (time) => new Date(time).toLocaleTimeString("en-GB");
const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
const moment = (time) => el("time", { datetime: time, title: time }, clock(time));

/** "0:10" as "0–9", the layers themselves. */
function layersText(layers) {
  const [start, end] = layers.split(":").map(Number);
  return end - start === 1 ? `${start}` : `${start}–${end - 1}`;
}

const STATES = {
  ready: ["good", "ready", "disc"],
  computing: ["good computing", "computing", "disc"],
  starting: ["busy", "starting", "ring"],
  loading: ["busy", "loading", "ring"],
  backoff: ["busy", "restarts soon", "triangle"],
  degraded: ["busy", "a worker restarts", "triangle"],
  draining: ["busy", "draining", "half"],
  stopped: ["idle", "stopped", "square"],
  failed: ["bad", "given up", "cross"],
  lost: ["bad", "lost", "cross"],
};

const SHAPES = {
  disc: () => svg("circle", { cx: 6, cy: 6, r: 5 }),
  ring: () =>
    svg("circle", { cx: 6, cy: 6, r: 4.5, fill: "none", "stroke-width": 2.5, "stroke-dasharray": "4 3" }),
  half: () => [
    svg("circle", { cx: 6, cy: 6, r: 4.5, fill: "none", "stroke-width": 2 }),
    svg("path", { d: "M6 1.5a4.5 4.5 0 0 0 0 9z" }),
  ],
  triangle: () => svg("path", { d: "M6 1 11.5 11H.5z" }),
  square: () => svg("rect", { x: 1, y: 1, width: 10, height: 10 }),
  cross: () => svg("path", { d: "M2 2 10 10M10 2 2 10", fill: "none", "stroke-width": 3 }),
};

function stateOf(name) {
  const [kind, word, shape] = STATES[name] ?? ["idle", name, "square"];
  return {
    kind,
    word,
    shape: svg("svg", { class: "shape", viewBox: "0 0 12 12", "aria-hidden": "true" }, SHAPES[shape]()),
  };
}

const CAUSES = {
  clean: () => "ended in good order",
  exit_code: (end) => `exited with status ${end.exit_code}`,
  signal_ours: (end) => `stopped by its supervisor with ${end.signal}`,
  signal_other: (end) => `killed by ${end.signal}`,
  out_of_memory_proven: () => "killed for want of memory",
  out_of_memory_probable: () => "killed, probably for want of memory",
  protocol_error: () => "broke the protocol",
  hang: () => "hung, and was killed",
  startup_timeout: () => "did not start in time",
  load_rejected: () => "refused the load",
  identity_mismatch: () => "held another identity",
  status_stolen: () => "ended; somebody else took its exit status",
};

const causeText = (end) => (CAUSES[end.cause] ?? (() => end.cause))(end);
const isAskedFor = (end) => end.cause === "clean" || end.cause === "signal_ours";

// ---- what is known ------------------------------------------------------------------------------------------

const known = { event: null, samples: [], generations: [] };

function take(kind, event) {
  if (kind === "snapshot") Object.assign(known, { samples: [], generations: [] });
  known.event = event;
  known.samples = [...known.samples, ...event.samples].slice(-SAMPLES_KEPT);
  known.generations = [...known.generations, ...event.generations].slice(-GENERATIONS_KEPT);
}

const status = () => known.event.status;
const models = () => status().gateway?.models ?? [];
const sum = (items, of) => items.reduce((total, item) => total + (of(item) ?? 0), 0);

/** Routes with their stages, whether these are this service's workers or a mesh's nodes. */
function routes() {
  const { workers, routes: overMesh, model } = status();
  if (overMesh) return overMesh;
  return workers.length ? [{ model: baseName(model), stages: workers }] : [];
}

const stages = () => routes().flatMap((route) => route.stages);
const baseName = (path) => path.split("/").pop() || path;

/** Of all workers, newest first. */
function ends() {
  const all = (status().workers ?? []).flatMap((worker) =>
    worker.ends.map((end) => ({ ...end, layers: worker.layers })),
  );
  return all.sort((one, other) => (one.time < other.time ? 1 : -1));
}

function stateName(stage) {
  return stage.state === "ready" && stage.execution?.state === "computing" ? "computing" : stage.state;
}

/** The stages' colours, by their layers. */
function hueOf(layers) {
  const places = [...new Set(stages().map((stage) => stage.layers))];
  return Math.max(0, places.indexOf(layers)) % HUES;
}

// ---- head ---------------------------------------------------------------------------------------------------

function showHead() {
  const { model, phase, version, pid, uptime_s: uptime, node } = status();
  const named =
    model === undefined
      ? routes()
          .map((route) => route.model)
          .join(", ") || "no model yet"
      : baseName(model);
  show(byId("model"), named);
  document.title = `${named} · gguf-worker`;
  const parts = [`up ${span(uptime)}`, `version ${version}`, `process ${pid}`];
  if (node) parts.unshift(`node ${node.name}${node.registered ? "" : " (not registered)"}`);
  show(byId("about"), parts.join(" · "));
  const { kind, word, shape } = stateOf(phase);
  byId("phase").className = `badge ${kind}`;
  byId("phase").hidden = false;
  show(byId("phase"), shape, word);
  show(
    byId("footer"),
    status().gateway ? `${plural(status().gateway.requests, "request")} answered since the start.` : "",
  );
}

function tile(name, value, small) {
  return el(
    "div",
    { "data-key": name },
    el("dt", {}, name),
    el("dd", {}, value, small ? el("small", {}, ` ${small}`) : null),
  );
}

function showNow() {
  const all = stages();
  const last = known.samples.slice(-3);
  const now = last.length ? sum(last, ([, perSecond]) => perSecond) / last.length : 0;
  const tiles = [tile(`${known.event.unit === "rows" ? "Rows" : "Tokens"} per second`, rate(now))];
  if (models().length) {
    tiles.push(
      tile(
        "Generating",
        number(sum(models(), (m) => m.active)),
        `of ${number(sum(models(), (m) => m.slots))}`,
      ),
    );
    tiles.push(
      tile("Waiting", number(sum(models(), (m) => m.waiting)), `of ${number(sum(models(), (m) => m.queue))}`),
    );
  } else if (status().workers) {
    tiles.push(tile("In flight", number(sum(all, (stage) => stage.execution?.in_flight))));
    tiles.push(tile("Waiting", number(sum(all, (stage) => stage.execution?.queued))));
  }
  const open = Math.max(0, ...all.map((stage) => stage.execution?.sessions ?? 0));
  const limit = Math.min(...all.map((stage) => stage.capacity?.max_sessions || Infinity));
  tiles.push(tile("Sessions", number(open), Number.isFinite(limit) ? `of ${number(limit)}` : null));
  tiles.push(tile("Restarts", number(sum(all, (stage) => stage.restarts))));
  tiles.push(
    tile(
      "Ready",
      number(all.filter((stage) => stage.state === "ready").length),
      `of ${plural(all.length, "stage")}`,
    ),
  );
  show(byId("now"), tiles);
}

// ---- the route ----------------------------------------------------------------------------------------------

function showRoutes() {
  const all = routes();
  const drawn = all.map((route) => {
    const layers = Math.max(...route.stages.map((stage) => Number(stage.layers.split(":")[1])));
    const title = all.length > 1 ? el("h3", {}, route.model) : null;
    const heading = title ? "h4" : "h3";
    const list = el("ol", {
      class: "stages",
      "aria-label": "Stages, in the order in which rows go through them",
    });
    list.append(...route.stages.map((stage) => stageCard(stage, layers, heading)));
    return el("div", { class: "route", "data-key": route.model }, title, list);
  });
  show(byId("routes"), drawn.length ? drawn : el("p", { class: "card empty", "data-key": "" }, noRoute()));
}

const noRoute = () => (status().routes ? "No nodes form a route yet." : "The model is being looked at.");

function stageCard(stage, nLayers, heading) {
  const { kind, word, shape } = stateOf(stateName(stage));
  const place = stage.node
    ? `node ${stage.node}`
    : stage.pid === null
      ? "no process"
      : `process ${stage.pid}`;
  return el(
    "li",
    { class: `card stage hue-${hueOf(stage.layers)}`, "data-key": stage.layers },
    el(
      "div",
      { class: "top" },
      el(heading, {}, `Layers ${layersText(stage.layers)}`),
      el("span", { class: `state ${kind}` }, shape, word),
    ),
    extent(stage.layers, nLayers),
    el("p", { class: "place" }, [place, ...(stage.via ?? []).slice(0, 1)].join(" · "), holds(stage)),
    whyText(stage) ? el("p", { class: "why" }, whyText(stage)) : null,
    loadMeter(stage),
    cellsMeter(stage),
    facts(stage),
  );
}

/** Which part of the model it is. */
function extent(layers, nLayers) {
  const [start, end] = layers.split(":").map(Number);
  const percent = (value) => `${(100 * value) / nLayers}%`;
  return svg(
    "svg",
    { class: "extent", role: "img", "aria-label": `${end - start} of ${nLayers} layers` },
    svg("rect", { width: "100%", height: "100%" }),
    svg("rect", { x: percent(start), width: percent(end - start), height: "100%" }),
  );
}

function holds({ ownership }) {
  const parts = [
    ownership?.token_embedding ? "embedding" : null,
    ownership?.output_head ? "head" : null,
  ].filter(Boolean);
  return parts.length ? ` · with ${parts.join(" and ")}` : null;
}

function whyText(stage) {
  if (stage.failure) return stage.failure;
  const last = stage.ends?.at(-1);
  return last && stage.state !== "ready" && !isAskedFor(last)
    ? `Process ${last.pid}: ${causeText(last)}.`
    : null;
}

function meter(label, value, most, text, kind = "") {
  const share = most > 0 ? Math.min(1, value / most) : 0;
  return el(
    "div",
    {
      class: `meter ${kind}`,
      "data-key": label,
      role: "meter",
      "aria-label": label,
      "aria-valuenow": value,
      "aria-valuemin": 0,
      "aria-valuemax": most,
      "aria-valuetext": text,
    },
    el("span", { class: "label" }, label),
    el("span", {}, text),
    svg(
      "svg",
      { "aria-hidden": "true" },
      svg("rect", { width: "100%", height: "100%" }),
      svg("rect", { width: `${100 * share}%`, height: "100%" }),
    ),
  );
}

function loadMeter({ state, execution }) {
  if (state !== "loading" || !execution?.phase_total) return null;
  const { phase, phase_done: done, phase_total: total } = execution;
  return meter(`Loading: ${phase}`, done, total, `${number((100 * done) / total)} %`, "busy");
}

function cellsMeter({ capacity, execution }) {
  if (!capacity?.kv_cells) return null;
  const used = execution?.kv_cells_used ?? 0;
  return meter("KV cells", used, capacity.kv_cells, `${number(used)} of ${number(capacity.kv_cells)}`);
}

function facts(stage) {
  const { memory, capacity, execution, restarts, uptime_s: uptime } = stage;
  const rows = [];
  const add = (name, value) => rows.push(el("dt", {}, name), el("dd", {}, value));
  if (memory) add("Weights", bytes(memory.weights_bytes));
  if (memory) add("KV, compute", `${bytes(memory.kv_bytes)}, ${bytes(memory.compute_bytes)}`);
  if (execution?.rss_bytes) add("Resident", bytes(execution.rss_bytes));
  if (capacity) add("Sessions", `${number(execution?.sessions ?? 0)} of ${number(capacity.max_sessions)}`);
  if (execution) add("Queue", number(execution.queued));
  add("Restarts", number(restarts));
  if (uptime != null) add("Running for", span(uptime));
  return el("dl", {}, rows);
}

// ---- the chart ----------------------------------------------------------------------------------------------

function showChart() {
  const { samples } = known;
  const chart = byId("chart");
  const [width, height] = [chart.clientWidth || 600, chart.clientHeight || 176];
  const area = { left: 34, right: width - 4, top: 14, bottom: height - 20 };
  const until = samples.length ? samples.at(-1)[0] : Date.now() / 1000;
  const lastS = Math.min(600, Math.max(60, samples.length ? until - samples[0][0] : 0));
  const most = niceMost(Math.max(1, ...samples.map(([, perSecond]) => perSecond)));
  const x = (time) => area.right - ((until - time) / lastS) * (area.right - area.left);
  const y = (perSecond) => area.bottom - (perSecond / most) * (area.bottom - area.top);
  const died = ends()
    .filter((end) => !isAskedFor(end))
    .map((end) => Date.parse(end.time) / 1000);
  const deaths = died.filter((time) => time >= until - lastS && time <= until + 5);

  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  show(
    chart,
    axes(area, most, lastS, y),
    curve(samples, area, x, y),
    deaths.map((time) => deathMark(x(Math.min(time, until)), area)),
  );
  showRateWords(samples, deaths.length, lastS);
  show(byId("minutes"), minuteRows(samples));
}

const niceMost = (value) => {
  const power = 10 ** Math.floor(Math.log10(value));
  return (
    [1, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 1.05) ?? 10 * power
  );
};

function axes(area, most, lastS, y) {
  const lines = [0, most / 2, most].flatMap((value) => [
    svg("line", { class: "grid", x1: area.left, x2: area.right, y1: y(value), y2: y(value) }),
    svg("text", { x: area.left - 6, y: y(value) + 4, "text-anchor": "end" }, number(value, most < 4 ? 1 : 0)),
  ]);
  const times = [
    svg("text", { x: area.left, y: area.bottom + 16 }, `${span(Math.round(lastS))} ago`),
    svg("text", { x: area.right, y: area.bottom + 16, "text-anchor": "end" }, "now"),
  ];
  return svg("g", { "data-key": "axes" }, lines, times);
}

function curve(samples, area, x, y) {
  const points = samples.map(([time, perSecond]) => `${x(time).toFixed(1)} ${y(perSecond).toFixed(1)}`);
  if (points.length < 2) return null;
  const line = `M${points.join("L")}`;
  const [first, last] = [x(samples[0][0]), x(samples.at(-1)[0])];
  return svg(
    "g",
    { "data-key": "curve" },
    svg("path", {
      class: "area",
      d: `${line}L${last.toFixed(1)} ${area.bottom}L${first.toFixed(1)} ${area.bottom}Z`,
    }),
    svg("path", { class: "line", d: line }),
  );
}

function deathMark(x, area) {
  return svg(
    "g",
    {},
    svg("line", { class: "end", x1: x, x2: x, y1: area.top, y2: area.bottom }),
    svg("path", { class: "end-mark", d: `M${x - 5} ${area.top - 8}h10l-5 8z` }),
  );
}

function showRateWords(samples, deaths, lastS) {
  const unit = known.event.unit === "rows" ? "Rows" : "Tokens";
  show(byId("rate-title"), `${unit} per second`);
  const minute = samples.slice(-60);
  const highest = Math.max(0, ...samples.map(([, perSecond]) => perSecond));
  show(byId("rate-now"), minute.length ? `mean of the last minute ${rate(meanOf(minute))}` : "");
  const died = deaths
    ? ` ▼ marks where ${deaths === 1 ? "a process" : `each of ${deaths} processes`} died.`
    : "";
  show(
    byId("chart-text"),
    samples.length
      ? `The last ${span(Math.round(lastS))}; highest ${rate(highest)}.${died}`
      : "Nothing measured yet.",
  );
}

const meanOf = (samples) => sum(samples, ([, perSecond]) => perSecond) / samples.length;

function minuteRows(samples) {
  const minutes = new Map();
  for (const sample of samples) {
    const minute = Math.floor(sample[0] / 60);
    minutes.set(minute, [...(minutes.get(minute) ?? []), sample]);
  }
  return [...minutes]
    .reverse()
    .map(([minute, its]) =>
      el(
        "tr",
        { "data-key": minute },
        el("th", { scope: "row" }, clock(minute * 60_000).slice(0, 5)),
        el("td", { class: "number" }, rate(meanOf(its))),
        el("td", { class: "number" }, rate(Math.max(...its.map(([, perSecond]) => perSecond)))),
      ),
    );
}

// ---- generations --------------------------------------------------------------------------------------------

/** Where the time of a generation went: [class, name, microseconds]. */
function partsOf(generation) {
  const computed = generation.stages.map((stage) => [
    `hue hue-${hueOf(stage.layers)}`,
    `layers ${layersText(stage.layers)}`,
    stage.compute_us,
  ]);
  const waits = sum(generation.stages, (stage) => stage.queue_us + stage.hop_us);
  const replays = sum(generation.stages, (stage) => stage.replay_us);
  const parts = [
    ...computed,
    ["waits", "queues and ways", waits],
    ["replay", "bringing back what died", replays],
  ];
  const rest = generation.total_us - sum(parts, ([, , us]) => us);
  return [...parts, ["rest", "the rest", Math.max(0, rest)]];
}

function bar(generation) {
  const parts = partsOf(generation).filter(([, , us]) => us > 0);
  const whole = sum(parts, ([, , us]) => us);
  let done = 0;
  const rects = parts.map(([kind, , us]) => {
    const rect = svg("rect", {
      class: kind,
      x: `${(100 * done) / whole}%`,
      width: `${(100 * us) / whole}%`,
      height: "100%",
    });
    done += us;
    return rect;
  });
  const words = parts.map(([, name, us]) => `${name} ${number((100 * us) / whole)} %`).join(", ");
  return svg("svg", { class: "bar wide", role: "img", "aria-label": `Time: ${words}` }, rects);
}

function showGenerations() {
  const newest = [...known.generations].reverse();
  byId("no-generations").hidden = newest.length > 0;
  byId("generations").hidden = newest.length === 0;
  show(byId("generations"), newest.map(generationItem));
  show(byId("legend"), newest.length ? legend(newest) : []);
}

function legend(generations) {
  const seen = new Map();
  for (const generation of generations)
    for (const [kind, name, us] of partsOf(generation)) if (us > 0) seen.set(name, kind);
  return [...seen].map(([name, kind]) =>
    el(
      "li",
      { "data-key": name },
      svg("svg", { "aria-hidden": "true" }, svg("rect", { class: kind, width: "100%", height: "100%" })),
      name,
    ),
  );
}

function generationItem(generation) {
  const { tokens, decode_us: decodeUs } = generation;
  const perSecond = tokens > 1 && decodeUs ? `${rate((tokens - 1) / (decodeUs / 1e6))} per s` : "";
  return el(
    "li",
    { "data-key": generation.work_id },
    el(
      "details",
      {},
      el(
        "summary",
        {},
        el("span", {}, moment(generation.time)),
        el("span", {}, `${number(generation.prompt_tokens)} → ${plural(tokens, "token")}`),
        el("span", { class: "dim" }, perSecond),
        bar(generation),
        el("span", {}, micro(generation.total_us), outcome(generation)),
      ),
      el("div", { class: "more" }, generationFacts(generation), stageTable(generation)),
    ),
  );
}

function outcome({ finish_reason: reason, error, stages: all }) {
  const replays = sum(all, (stage) => stage.replays);
  const words = [
    error ? `${reason}: ${error}` : reason,
    replays ? `${plural(replays, "replay")}` : null,
  ].filter(Boolean);
  return el("span", { class: error ? "bad" : replays ? "busy" : "dim" }, ` ${words.join(", ")}`);
}

function generationFacts(generation) {
  const first = generation.first_token_us;
  const words = [
    generation.model,
    first === null ? "no token" : `first token after ${micro(first)}`,
    generation.tokens > 1 ? `then ${micro(generation.decode_us / (generation.tokens - 1))} each` : null,
  ];
  return el(
    "p",
    { class: "dim" },
    words.filter(Boolean).join(" · "),
    el("br"),
    "request ",
    el("code", {}, generation.request_id),
  );
}

function stageTable(generation) {
  const names = ["Stage", "Forwards", "Rows", "Computed", "Queued", "On the way", "Replayed"];
  const rows = generation.stages.map((stage) => {
    const replayed = stage.replays
      ? `${plural(stage.rows_replayed, "row")} in ${micro(stage.replay_us)}`
      : "–";
    const cells = [
      number(stage.forwards),
      number(stage.rows),
      micro(stage.compute_us),
      micro(stage.queue_us),
      micro(stage.hop_us),
      replayed,
    ];
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, stage.label.replace(stage.layers, layersText(stage.layers))),
      cells.map((text) => el("td", { class: "number" }, text)),
    );
  });
  return el(
    "div",
    { class: "scroll", role: "region", tabindex: 0, "aria-label": "Times of each stage" },
    el(
      "table",
      {},
      el("caption", { class: "only-read" }, "Times of each stage"),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          names.map((name, at) => el("th", { scope: "col", class: at ? "number" : null }, name)),
        ),
      ),
      el("tbody", {}, rows),
    ),
  );
}

// ---- ends ---------------------------------------------------------------------------------------------------

function showEnds() {
  byId("ends-section").hidden = !status().workers;
  const all = ends();
  byId("no-ends").hidden = all.length > 0;
  byId("ends").hidden = all.length === 0;
  show(byId("ends"), all.map(endItem));
}

function endItem(end) {
  const { kind, shape } = stateOf(isAskedFor(end) ? "stopped" : "failed");
  return el(
    "li",
    { "data-key": `${end.layers} ${end.generation}` },
    el(
      "details",
      {},
      el(
        "summary",
        {},
        el("span", {}, moment(end.time)),
        el("span", {}, `layers ${layersText(end.layers)}`),
        el("span", { class: `state wide ${kind}` }, shape, causeText(end)),
        el("span", { class: "dim" }, `after ${span(end.uptime_s)}`),
      ),
      el(
        "div",
        { class: "more" },
        el(
          "p",
          { class: "dim" },
          `Process ${end.pid}, the ${ordinal(end.generation)} of these layers. Cause `,
          el("code", {}, end.cause),
          end.detail ? `: ${end.detail}` : ".",
        ),
        end.stderr_tail.length
          ? el(
              "pre",
              { tabindex: 0, role: "region", "aria-label": "Its last words on stderr" },
              end.stderr_tail.join("\n"),
            )
          : null,
      ),
    ),
  );
}

function ordinal(count) {
  const ending = { one: "st", two: "nd", few: "rd", other: "th" };
  return `${count}${ending[new Intl.PluralRules("en", { type: "ordinal" }).select(count)]}`;
}

// ---- what is told aloud -------------------------------------------------------------------------------------

let told = new Map();

/** States that have become others since the last event, and no numbers. */
function announce() {
  const now = new Map(
    stages().map((stage) => [`${stage.node ?? ""} layers ${layersText(stage.layers)}`.trim(), stage]),
  );
  const news = [];
  for (const [name, stage] of now) {
    const before = told.get(name);
    if (before === undefined || before === stage.state) continue;
    news.push(`${name}: ${stateOf(stage.state).word}. ${whyText(stage) ?? ""}`.trim());
  }
  told = new Map([...now].map(([name, stage]) => [name, stage.state]));
  if (news.length) show(byId("announcements"), news.join(" "));
}

// ---- events -------------------------------------------------------------------------------------------------

function showAll() {
  byId("main").hidden = false;
  showHead();
  showNow();
  showRoutes();
  showChart();
  showGenerations();
  showEnds();
  announce();
}

function showConnection(word) {
  show(byId("connection"), word);
}

/** Server-sent events of an answer: [kind, data]. `heard` is called with whatever comes. */
async function* eventsOf(answer, heard) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    heard();
    const blocks = (text + value).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const fields = new Map(
        block
          .split("\n")
          .map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]),
      );
      if (fields.has("data")) yield [fields.get("event"), JSON.parse(fields.get("data"))];
    }
  }
}

/** The key that somebody types in; kept by the caller alone. */
function askKey(wasRefused) {
  const form = byId("key-form");
  byId("main").hidden = true;
  form.hidden = false;
  byId("key-error").textContent = wasRefused ? "This key is not one of this server's." : "";
  showConnection("waiting for a key");
  byId("key").focus();
  return new Promise((resolve) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      const key = byId("key").value;
      byId("key").value = "";
      form.hidden = true;
      resolve(key);
    };
  });
}

async function read(key) {
  const stop = new AbortController();
  let silence = setTimeout(() => stop.abort(), SILENCE_MS);
  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(() => stop.abort(), SILENCE_MS);
  };
  try {
    const headers = key === null ? {} : { authorization: `Bearer ${key}` };
    const answer = await fetch("/v1/events", { headers, cache: "no-store", signal: stop.signal });
    if (!answer.ok) return answer.status;
    for await (const [kind, event] of eventsOf(answer, heard)) {
      take(kind, event);
      showAll();
      showConnection("live");
    }
    return answer.status;
  } finally {
    clearTimeout(silence);
  }
}

async function follow() {
  let key = null;
  for (let failures = 0; ;) {
    const began = Date.now();
    const answered = await read(key).catch(() => 0);
    if (answered === 401) {
      key = await askKey(key !== null);
      continue;
    }
    failures = Date.now() - began > 5000 ? 1 : failures + 1;
    const wait = Math.min(10, 2 ** (failures - 1));
    showConnection(`not connected; next attempt in ${wait} s`);
    await new Promise((resolve) => setTimeout(resolve, 1000 * wait));
  }
}

new ResizeObserver(() => known.event && showChart()).observe(byId("chart"));
follow();
