// The live picture: draws the frames of GET /v1/live as lanes, bars and curves, and says the same in words and a table.
// `mount(element, {base, headers})` begins, and returns a function that ends it.

const LANES_S = 60; // seconds that lanes and bars show
const CURVES_S = 300;
const SILENCE_MS = 15_000; // without a frame: the connection is taken for dead
const PAUSES_S = [1, 2, 4, 8, 15]; // before the next try to connect
const MOST_LANES = 256;
const STATES = ["idle", "reading", "decoding", "paused"];
const SAID = { idle: "idle", reading: "reads its prompt", decoding: "writes", paused: "paused: its client reads too slowly" };

const CSS = `
.live { --live-decoding: var(--accent, #0f766e); --live-reading: #2563eb; --live-paused: #a15c07; --live-late: var(--bad, #b42318);
  color: var(--fg, #1d2125); max-width: 1240px; margin: 0 auto; padding: 16px; container-type: inline-size; }
@media (prefers-color-scheme: dark) {
  :root:not([data-theme="light"]) .live { --live-decoding: var(--accent, #2dd4bf); --live-reading: #7aa7ff; --live-paused: #fbbf24; color: var(--fg, #e7e9ea); } }
:root[data-theme="dark"] .live { --live-reading: #7aa7ff; --live-paused: #fbbf24; }
.live h2 { margin: 0; font-size: 14px; font-weight: 600; }
.live h2 small { margin-left: 8px; color: var(--muted, #6a737b); font-weight: 400; font-size: 12.5px; }
.live-say { margin: 0 0 14px; font-size: 19px; line-height: 1.4; min-height: 2.8em; text-wrap: pretty; }
.live-say b { font-weight: 600; }
.live-say span { display: block; color: var(--muted, #6a737b); font-size: 14.5px; }
.live-say[data-tone="wait"] b { color: var(--live-paused); }
.live-say[data-tone="bad"] b { color: var(--live-late); }
.live-tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(118px, 1fr)); gap: 8px; margin: 0 0 12px; }
.live-tile { padding: 9px 12px; border: 1px solid var(--line, #8883); border-radius: 12px; background: var(--card, transparent); }
.live-tile dt { color: var(--muted, #6a737b); font-size: 12.5px; line-height: 1.3; }
.live-tile dd { margin: 2px 0 0; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; line-height: 1.2; white-space: nowrap; }
.live-tile dd small { margin-left: 3px; color: var(--muted, #6a737b); font-size: 12.5px; font-weight: 400; }
.live-card { margin: 0 0 12px; padding: 12px 14px; border: 1px solid var(--line, #8883); border-radius: 12px; background: var(--card, transparent); }
.live-card canvas { display: block; width: 100%; margin-top: 8px; }
.live-head { display: flex; flex-wrap: wrap; gap: 4px 16px; align-items: baseline; justify-content: space-between; }
.live-key { display: flex; flex-wrap: wrap; gap: 4px 14px; margin: 0; padding: 0; list-style: none; color: var(--muted, #6a737b); font-size: 12.5px; }
.live-key li { display: flex; align-items: center; gap: 5px; }
.live-key canvas { width: 22px; height: 10px; margin: 0; border-radius: 2px; }
.live-curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(250px, 1fr)); gap: 12px; margin-bottom: 12px; }
.live-curves .live-card { margin: 0; }
.live table { width: 100%; border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
.live th, .live td { padding: 5px 8px 5px 0; text-align: start; border-top: 1px solid var(--line, #8883); overflow-wrap: anywhere; vertical-align: top; }
.live thead th { border: 0; color: var(--muted, #6a737b); font-weight: 500; }
.live caption { text-align: start; font-weight: 600; font-size: 14px; padding: 0 0 4px; }
.live-lists { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 12px; }
.live-lists:empty { display: none; }
.live details { margin-top: 12px; }
.live summary { cursor: pointer; color: var(--muted, #6a737b); font-size: 13.5px; padding: 6px 0; }
.live details table { margin-bottom: 12px; }
.live-note { padding: 8px 12px; border-radius: 10px; background: var(--sunken, #8881); font-size: 14px; margin: 0 0 12px; }
.live [hidden] { display: none; }
`;

// Words and numbers

const number = (value, digits = 0) => value.toLocaleString(undefined, { maximumFractionDigits: digits, minimumFractionDigits: digits });
const short = (value) => (value >= 1e6 ? `${number(value / 1e6, 1)} M` : value >= 1e4 ? `${number(value / 1e3, 1)} k` : number(value));
const ms = (seconds) => (seconds >= 1 ? [number(seconds, 1), "s"] : [number(seconds * 1000, seconds < 0.01 ? 1 : 0), "ms"]);
const plural = (n, one, many) => `${short(n)} ${n === 1 ? one : many}`;
const sum = (values) => values.reduce((total, value) => total + value, 0);

function node(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// What is kept of each frame

function totals(frame) {
  const engines = frame.engines ?? [];
  const recents = engines.map((engine) => engine.recent).filter(Boolean);
  const seconds = Math.max(...recents.map((recent) => recent.seconds), 0);
  const rate = (name) => (seconds ? sum(recents.map((recent) => recent[name])) / seconds : 0);
  const steps = sum(recents.map((recent) => recent.steps));
  const per = (name) => (steps ? sum(recents.map((recent) => recent[name])) / steps : 0);
  const read = rate("reading");
  const cached = rate("cached");
  return {
    time: frame.time,
    lag: frame.hub.lag,
    streams: frame.http.streams,
    written: rate("written"),
    read,
    cached,
    hits: read + cached > 0 ? cached / (read + cached) : null,
    wakes: rate("wakes"),
    steps: seconds ? steps / seconds : 0,
    step: per("step_s"),
    rows: { reading: per("reading"), decoding: per("decoding") },
    waiting: sum(engines.map((engine) => engine.waiting)),
    queued: sum((frame.queues ?? []).map((queue) => queue.depth)),
    running: sum(engines.map((engine) => engine.running)),
    paused: sum(engines.map((engine) => engine.paused)),
    slots: sum(engines.map((engine) => engine.n_slots)),
    in_flight: sum((frame.queues ?? []).map((queue) => queue.in_flight)),
    lanes: new Map(engines.map((engine) => [engine.model, (engine.slots ?? []).slice(0, MOST_LANES).map(lane)])),
  };
}

const lane = (slot) => ({ state: STATES.indexOf(slot.state), task: slot.task ?? -1, written: slot.written ?? 0, prompt: slot.prompt ?? 0, read: slot.read ?? 0 });

// Smoothed over a second: four numbers a second cannot be read.
function recent(history, seconds = 1) {
  const last = history.at(-1);
  const some = history.filter((one) => one.time > last.time - seconds);
  const mean = (pick) => sum(some.map(pick)) / some.length;
  const busy = some.filter((one) => one.step > 0);
  const ofBusy = (pick) => (busy.length ? sum(busy.map(pick)) / busy.length : 0);
  const known = history.filter((one) => one.time > last.time - LANES_S && one.hits !== null);
  const reads = sum(known.map((one) => one.read + one.cached));
  return {
    ...last,
    written: mean((one) => one.written),
    read: mean((one) => one.read),
    wakes: mean((one) => one.wakes),
    step: ofBusy((one) => one.step),
    rows: { reading: ofBusy((one) => one.rows.reading), decoding: ofBusy((one) => one.rows.decoding) },
    lag: Math.max(...some.map((one) => one.lag)),
    hits: reads ? sum(known.map((one) => one.cached)) / reads : null,
  };
}

// What goes well and what does not, in one sentence and its reason.
function verdict(frame, now) {
  const coming = (frame.models ?? []).find((model) => model.state === "loading" || model.state === "downloading");
  const failed = (frame.models ?? []).find((model) => model.state === "failed");
  const open = (frame.upstreams ?? []).filter((upstream) => upstream.state !== "ready");
  const oldest = Math.max(0, ...(frame.queues ?? []).map((queue) => queue.oldest ?? 0));
  if (now.lag > 0.1) return ["bad", `Everybody waited ${ms(now.lag).join(" ")} for the hub.`, "Something held the one thread that serves all streams; the log names it."];
  if (failed) return ["bad", `The model ${failed.id} could not be loaded.`, "The log says why."];
  if (coming) {
    const { bytes, total } = coming.progress ?? {};
    return ["wait", `The model ${coming.id} is ${coming.state}${total ? `, ${number((100 * bytes) / total)} % are here` : ""}.`, "Requests for it wait or are refused until it is there."];
  }
  if (now.queued) return ["wait", `${plural(now.queued, "call waits", "calls wait")} for a free place${oldest ? `, the first for ${ms(oldest).join(" ")}` : ""}.`, "All permits of a pool or upstream are taken: more workers or upstreams would help."];
  if (now.waiting && now.running >= now.slots) return ["wait", `${plural(now.waiting, "request waits", "requests wait")}: all ${now.slots} slots are taken.`, `${short(now.written)} tokens a second go out meanwhile; more slots (--slots) let more run at once.`];
  if (open.length) return ["wait", `${plural(open.length, "upstream takes", "upstreams take")} no calls.`, open.map((upstream) => `${upstream.id}: ${upstream.state}`).join(", ")];
  if (now.paused) return ["wait", `${plural(now.paused, "answer is", "answers are")} paused.`, "Their clients read more slowly than the model writes; nobody else waits for them."];
  const lanes = [...now.lanes.values()].flat();
  const reading = lanes.filter((one) => STATES[one.state] === "reading").length;
  if (reading * 2 > now.running) return ["good", `Prompts are being read: ${short(now.read)} tokens a second.`, `Each step reads ${number(now.rows.reading)} tokens of prompts beside the ${number(now.rows.decoding)} streams that write.`];
  if (now.running) return ["good", `${plural(now.running, "answer is", "answers are")} written at once: ${short(now.written)} tokens a second.`, `One step of ${ms(now.step).join(" ")} makes a token for each of ${number(now.rows.decoding, now.rows.decoding < 10 ? 1 : 0)} streams; nothing waits.`];
  if (now.in_flight) return ["good", `${plural(now.in_flight, "call runs", "calls run")}; nothing waits.`, ""];
  return ["good", "Nothing runs, nothing waits.", "Send a request and watch its lane."];
}

// Drawing

function palette(root) {
  const style = getComputedStyle(root);
  const value = (name, fallback) => style.getPropertyValue(name).trim() || fallback;
  return {
    fg: style.color,
    muted: value("--muted", "#6a737b"),
    line: value("--line", "#88888840"),
    decoding: value("--live-decoding", "#0f766e"),
    reading: value("--live-reading", "#2563eb"),
    paused: value("--live-paused", "#a15c07"),
    late: value("--live-late", "#b42318"),
    font: `12px ${style.fontFamily || "sans-serif"}`,
  };
}

// Told apart without colours: decoding is solid, reading hatched, paused dotted, idle a line.
function filling(context, state, colours) {
  if (state === "decoding") return colours.decoding;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const paint = tile.getContext("2d");
  paint.strokeStyle = paint.fillStyle = colours[state];
  if (state === "reading") {
    paint.globalAlpha = 0.22;
    paint.fillRect(0, 0, 6, 6);
    paint.globalAlpha = 1;
    paint.lineWidth = 2;
    for (const shift of [-6, 0, 6]) { paint.moveTo(shift - 1, 7); paint.lineTo(shift + 7, -1); }
    paint.stroke();
  } else {
    paint.globalAlpha = 0.25;
    paint.fillRect(0, 0, 6, 6);
    paint.globalAlpha = 1;
    paint.fillRect(1, 1, 2, 2);
    paint.fillRect(4, 4, 2, 2);
  }
  return context.createPattern(tile, "repeat");
}

function surface(canvas, height) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width];
}

const GUTTER = 46; // pixels on the left, for labels

// Grows with what was seen, so that a picture that was just opened is not empty.
const span = (history, least, most) => Math.min(Math.max(history.at(-1).time - history[0].time, least), most);
const lanesSpan = (history) => span(history, 15, LANES_S);

function drawLanes(canvas, history, model, colours) {
  const last = history.at(-1);
  const slots = last.lanes.get(model) ?? [];
  const pitch = slots.length > 64 ? 5 : slots.length > 24 ? 9 : slots.length > 12 ? 15 : 22;
  const [context, width] = surface(canvas, slots.length * pitch + 16);
  const seconds = lanesSpan(history);
  const from = last.time - seconds;
  const x = (time) => GUTTER + ((time - from) / seconds) * (width - GUTTER);
  const fills = STATES.map((state) => (state === "idle" ? null : filling(context, state, colours)));
  const shown = history.filter((one) => one.time >= from - 1 && one.lanes.has(model));
  context.font = colours.font;
  context.textBaseline = "middle";
  slots.forEach((slot, index) => {
    const top = index * pitch;
    const thick = Math.max(pitch - (pitch > 12 ? 5 : 1), 2);
    context.fillStyle = colours.line;
    context.fillRect(GUTTER, top + thick / 2, width - GUTTER, 1);
    const flush = (run, until) => {
      if (!run || !fills[run.state]) return;
      const left = Math.max(x(run.at), GUTTER);
      context.fillStyle = fills[run.state];
      context.fillRect(left, top, Math.max(x(until) - left - (run.ends ? 1.5 : 0), 1), thick);
    };
    let run = null;
    let before = null;
    for (const one of shown) {
      const now = one.lanes.get(model)[index];
      const gap = before !== null && one.time - before.time > 3; // nobody watched
      if (!now || !run || gap || now.state !== run.state || now.task !== run.task) {
        if (run) run.ends = !now || now.task !== run.task;
        flush(run, gap ? before.time + 0.25 : before ? before.time : one.time);
        run = now ? { state: now.state, task: now.task, at: run && !gap && before ? before.time : one.time } : null;
      }
      before = one;
    }
    flush(run, last.time);
    if (pitch > 12) {
      context.fillStyle = colours.muted;
      context.textAlign = "right";
      context.fillText(String(index), GUTTER - 10, top + thick / 2 + 1);
    }
  });
  context.fillStyle = colours.muted;
  const every = width < 500 ? 20 : seconds > 30 ? 10 : 5;
  for (let ago = 0; ago < seconds; ago += every) {
    context.textAlign = ago ? "center" : "right";
    if (x(last.time - ago) > GUTTER + 20) context.fillText(ago ? `${ago} s ago` : "now", x(last.time - ago), slots.length * pitch + 9);
  }
  if (slots.length && pitch <= 12) {
    context.textAlign = "right";
    const each = pitch > 8 ? 4 : 16;
    for (let index = 0; index < slots.length; index += each) context.fillText(String(index), GUTTER - 10, index * pitch + 5);
  }
}

function axis(context, width, height, most, colours, label) {
  context.font = colours.font;
  context.fillStyle = colours.muted;
  context.textAlign = "right";
  context.textBaseline = "top";
  context.fillText(label(most), GUTTER - 6, 0);
  context.textBaseline = "alphabetic";
  context.fillText("0", GUTTER - 6, height);
  context.fillStyle = colours.line;
  context.fillRect(GUTTER, height - 1, width - GUTTER, 1);
  context.fillRect(GUTTER, 0, width - GUTTER, 1);
}

const nice = (value) => {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 5, 10].map((digit) => digit * power).find((one) => one >= value * 0.999);
};

// Bars of each frame: one kind upwards, the other downwards, each with a scale of its own: a step reads hundreds of
// tokens of a prompt beside a few streams that write.
function drawBars(canvas, history, kinds, colours) {
  const half = 38;
  const [context, width] = surface(canvas, kinds.length * half + 2);
  const seconds = lanesSpan(history);
  const from = history.at(-1).time - seconds;
  const shown = history.filter((one) => one.time >= from);
  const unit = (width - GUTTER) / seconds;
  context.font = colours.font;
  context.textAlign = "right";
  kinds.forEach((kind, index) => {
    const most = nice(Math.max(kind.least, ...shown.map(kind.pick)));
    context.fillStyle = colours.muted;
    context.textBaseline = index ? "bottom" : "top";
    context.fillText(short(most), GUTTER - 6, index ? 2 * half + 2 : 0);
    context.fillStyle = filling(context, kind.fill, colours);
    shown.forEach((one, place) => {
      const wide = Math.max(Math.min(one.time - (shown[place - 1]?.time ?? one.time - 0.25), 1) * unit - 1, 1);
      const tall = (Math.min(kind.pick(one), most) / most) * half;
      context.fillRect(Math.max(GUTTER + (one.time - from) * unit - wide, GUTTER), index ? half + 1 : half - tall, wide, tall);
    });
  });
  context.fillStyle = colours.line;
  context.fillRect(GUTTER, half, width - GUTTER, 1);
}

function drawCurve(canvas, history, curve, colours) {
  const height = 64;
  const [context, width] = surface(canvas, height);
  const last = history.at(-1);
  const seconds = span(history, 60, CURVES_S);
  const from = last.time - seconds;
  const points = history.filter((one) => curve.pick(one) !== null);
  const most = curve.most ?? nice(Math.max(curve.least, ...points.map(curve.pick)));
  axis(context, width, height, most, colours, curve.label);
  const x = (time) => GUTTER + ((time - from) / seconds) * (width - GUTTER);
  const y = (value) => height - 1 - (Math.min(value, most) / most) * (height - 3);
  context.beginPath();
  points.forEach((one, index) => {
    const isGap = index === 0 || one.time - points[index - 1].time > (curve.gap ?? 3);
    context[isGap ? "moveTo" : "lineTo"](x(one.time), y(curve.pick(one)));
  });
  context.strokeStyle = colours[curve.colour];
  context.lineWidth = 1.6;
  context.lineJoin = "round";
  context.stroke();
}

const CURVES = [
  { title: "Tokens written", note: "a second, all streams", pick: (one) => one.writtenMean, least: 10, label: short, colour: "decoding", said: (now) => `${short(now.written)} a second` },
  { title: "Streams open", note: "one greenlet each, one thread for all", pick: (one) => one.streams, least: 5, label: short, colour: "fg", said: (now) => short(now.streams) },
  { title: "Hub lag", note: "how late everybody else is served", pick: (one) => one.lag, least: 0.01, label: (value) => ms(value).join(" "), colour: "late", said: (now) => ms(now.lag).join(" ") },
  { title: "Prompt from the cache", note: "tokens that need not be read again", pick: (one) => one.hits, most: 1, gap: 60, label: (value) => `${100 * value} %`, colour: "reading", said: (now) => (now.hits === null ? "no prompts in the last minute" : `${number(100 * now.hits)} % in the last minute`) },
];

// The parts of the page

function tile(title) {
  const value = node("span");
  const unit = node("small");
  return { element: node("div", { className: "live-tile" }, node("dt", { textContent: title }), node("dd", {}, value, unit)), value, unit };
}

function card(title, note, ...more) {
  const canvas = node("canvas", { role: "img" });
  const heading = node("h2", { textContent: title }, node("small", { textContent: note }));
  return { element: node("section", { className: "live-card" }, node("div", { className: "live-head" }, heading, ...more), canvas), canvas, heading };
}

function key(kinds) {
  const swatches = kinds.map(([fill, words]) => {
    const canvas = node("canvas", { "aria-hidden": "true" });
    return { canvas, fill, element: node("li", {}, canvas, words) };
  });
  const draw = (colours) => {
    for (const { canvas, fill } of swatches) {
      const [context, width] = surface(canvas, 10);
      context.fillStyle = fill === "idle" ? colours.line : filling(context, fill, colours);
      context.fillRect(0, fill === "idle" ? 5 : 0, width, fill === "idle" ? 1 : 10);
    }
  };
  return { element: node("ul", { className: "live-key" }, ...swatches.map((swatch) => swatch.element)), draw };
}

function table(caption, heads, rows) {
  const head = node("tr", {}, ...heads.map((text) => node("th", { scope: "col", textContent: text })));
  const body = rows.map((cells) => node("tr", {}, ...cells.map((text) => node("td", { textContent: String(text) }))));
  return node("table", {}, node("caption", { textContent: caption }), node("thead", {}, head), node("tbody", {}, ...body));
}

const words = (counts) => Object.entries(counts).map(([name, n]) => `${n} ${name}`).join(", ") || "none";

function lists(frame) {
  const shown = [];
  if (frame.models?.length > 1 || frame.models?.some((model) => model.state !== "loaded")) shown.push(table("Models", ["model", "state"], frame.models.map((model) => [model.id, model.state])));
  if (frame.queues?.length) {
    const classes = (queue) => Object.entries(queue.classes).map(([priority, n]) => `${n} of class ${priority}`).join(", ");
    shown.push(table("Queues", ["of", "wait", "by class", "oldest", "run"], frame.queues.slice(0, 12).map((queue) => [
      queue.key || "any model", queue.depth, classes(queue), queue.oldest === undefined ? "" : ms(queue.oldest).join(" "), `${queue.in_flight} of ${queue.permits}`])));
  }
  if (frame.pools?.length) shown.push(table("Worker pools", ["pool", "processes", "permits in use", "restarts"], frame.pools.map((pool) => [pool.name, words(pool.workers), `${pool.in_flight} of ${pool.permits}`, pool.restarts])));
  if (frame.upstreams) shown.push(table("Upstreams", ["upstream", "state", "run", "answered", "failed"], frame.upstreams.map((upstream) => [upstream.id, upstream.state, `${upstream.in_flight} of ${upstream.concurrency}`, upstream.ok, upstream.failed])));
  if (frame.encoders) shown.push(table("Image encoders", ["model", "state", "encodes", "wait", "blocks free"], frame.encoders.map((one) => [one.model, one.state, one.active, one.queued, `${one.free_blocks} of ${one.blocks}`])));
  if (frame.predictor) shown.push(table("Predictor", ["state", "slots in use", "restarts"], [[frame.predictor.state, `${frame.predictor.busy} of ${frame.predictor.busy + frame.predictor.free}`, frame.predictor.restarts]]));
  if (frame.grpc) shown.push(table("gRPC process", ["state", "streams", "calls"], [[frame.grpc.state.toLowerCase(), frame.grpc.streams, frame.grpc.calls]]));
  return shown.map((one) => node("section", { className: "live-card" }, one));
}

function numbers(frame, now) {
  const { hub, http } = frame;
  const rows = [
    ["tokens written a second", number(now.written)], ["tokens of prompts read a second", number(now.read)],
    ["rows of a step that write", number(now.rows.decoding, 1)], ["rows of a step that read", number(now.rows.reading, 1)],
    ["a step takes", ms(now.step).join(" ")], ["requests that wait for a slot", now.waiting], ["slots in use", `${now.running} of ${now.slots}`],
    ["answers paused", now.paused], ["streams open", now.streams], ["connections", http.connections ?? "not known"],
    ["greenlets that serve them", http.greenlets ?? "not known"], ["answers so far", http.answers], ["who watches this", http.watchers],
    ["hub lag", ms(now.lag).join(" ")], ["wakes of readers a second (eventfds written)", number(now.wakes)],
    ["collections of garbage", `${hub.collections}, ${ms(hub.collection_s).join(" ")} in all, the longest ${ms(hub.longest_collection).join(" ")}`],
  ];
  for (const engine of frame.engines ?? []) {
    rows.push([`${engine.model}: readers`, `${engine.readers}${engine.polled ? `, ${engine.polled} had no descriptor` : ""}`]);
    rows.push([`${engine.model}: prefix cache`, `${engine.cache.entries} prefixes, ${number(engine.cache.bytes / 1e6, 1)} MB, ${short(engine.cache.hits)} tokens known and ${short(engine.cache.misses)} computed`]);
    rows.push([`${engine.model}: tasks ended`, words(engine.ended)], [`${engine.model}: times that a task lost its slot`, engine.preempted]);
  }
  const made = [table("Numbers", ["what", "now"], rows)];
  for (const engine of frame.engines ?? []) {
    const slots = (engine.slots ?? []).map((slot, index) => [index, SAID[slot.state], slot.state === "idle" ? "" : slot.task, slot.prompt ? `${slot.read ?? 0} of ${slot.prompt}, ${slot.cached ?? 0} from the cache` : "", slot.written ?? ""]);
    if (slots.length) made.push(table(`Slots of ${engine.model}`, ["slot", "does", "task", "prompt tokens read", "tokens written"], slots));
  }
  return made;
}

function build(root) {
  const say = node("p", { className: "live-say" });
  const note = node("p", { className: "live-note", hidden: true, role: "status" });
  const tiles = {
    written: tile("written"), read: tile("prompts read"), step: tile("a step takes"), rows: tile("streams in a step"),
    waiting: tile("wait"), streams: tile("streams open"), lag: tile("hub lag"), hits: tile("from cache"),
  };
  const lanesKey = key([["decoding", "writes"], ["reading", "reads its prompt"], ["paused", "paused"], ["idle", "idle"]]);
  const rowsKey = key([["decoding", "above: streams that write"], ["reading", "below: tokens of prompts"]]);
  const lanes = node("div");
  const rows = card("Rows of each step", "all that one pass of the model computes", rowsKey.element);
  const queue = card("Waiting", "requests without a slot, calls in queues");
  const curves = CURVES.map((curve) => ({ curve, ...card(curve.title, curve.note) }));
  const listed = node("div", { className: "live-lists" });
  const numbersOf = node("div");
  const details = node("details", {}, node("summary", { textContent: "All of it as tables" }), numbersOf);
  const picture = node("div", { hidden: true },
    node("dl", { className: "live-tiles" }, ...Object.values(tiles).map((one) => one.element)), lanes, rows.element, queue.element,
    node("div", { className: "live-curves" }, ...curves.map((one) => one.element)), listed, details);
  root.append(note, say, picture);
  return { say, note, tiles, lanes, lanesKey, rows, rowsKey, queue, curves, listed, numbersOf, details, picture, byModel: new Map() };
}

function lanesOf(view, models) {
  for (const [model, one] of view.byModel) {
    if (!models.includes(model)) { one.element.remove(); view.byModel.delete(model); }
  }
  models.forEach((model, index) => {
    if (view.byModel.has(model)) return;
    const made = card("Slots", `${model}, the last minute`, ...(index ? [] : [view.lanesKey.element]));
    view.byModel.set(model, made);
    view.lanes.append(made.element);
  });
}

function show(view, root, frame, history, isDue) {
  const now = recent(history);
  const colours = palette(root);
  view.picture.hidden = false;
  const has = { models: Boolean(frame.engines?.length), queues: Boolean(frame.queues) };
  for (const name of ["written", "read", "step", "rows", "hits"]) view.tiles[name].element.hidden = !has.models;
  view.rows.element.hidden = !has.models;
  const models = (frame.engines ?? []).filter((engine) => engine.slots).map((engine) => engine.model);
  lanesOf(view, models);
  if (isDue) showWords(view, frame, now);
  for (const [model, one] of view.byModel) drawLanes(one.canvas, history, model, colours);
  if (models.length) view.lanesKey.draw(colours);
  if (has.models) {
    view.rowsKey.draw(colours);
    drawBars(view.rows.canvas, history, [{ pick: (one) => one.rows.decoding, fill: "decoding", least: 4 }, { pick: (one) => one.rows.reading, fill: "reading", least: 20 }], colours);
  }
  drawBars(view.queue.canvas, history, [{ pick: (one) => one.waiting + one.queued, fill: "paused", least: 4 }], colours);
  for (const { canvas, element, curve } of view.curves) {
    element.hidden = !has.models && curve.pick !== CURVES[1].pick && curve.pick !== CURVES[2].pick;
    if (!element.hidden) drawCurve(canvas, history, curve, colours);
  }
}

// Words change once a second at most: who reads them needs the time.
function showWords(view, frame, now) {
  const [tone, what, why] = verdict(frame, now);
  if (view.say.textContent !== what + why) view.say.replaceChildren(node("b", { textContent: what }), node("span", { textContent: why }));
  view.say.dataset.tone = tone;
  const set = (name, value, unit = "") => { view.tiles[name].value.textContent = value; view.tiles[name].unit.textContent = unit; };
  set("written", short(now.written), "tokens/s");
  set("read", short(now.read), "tokens/s");
  set("step", ...(now.step ? ms(now.step) : ["–"]));
  set("rows", number(now.rows.decoding, now.rows.decoding && now.rows.decoding < 10 ? 1 : 0));
  set("waiting", short(now.waiting + now.queued));
  set("streams", short(now.streams));
  set("lag", ...ms(now.lag));
  set("hits", now.hits === null ? "–" : number(100 * now.hits), now.hits === null ? "" : "%");
  for (const [model, one] of view.byModel) {
    const lanes = now.lanes.get(model) ?? [];
    const does = STATES.map((state, index) => `${lanes.filter((slot) => slot.state === index).length} ${state}`).join(", ");
    one.canvas.setAttribute("aria-label", `Slots of ${model}: ${does}`);
  }
  view.rows.canvas.setAttribute("aria-label", `A step has ${number(now.rows.decoding, 1)} rows that write and ${number(now.rows.reading, 1)} that read`);
  view.queue.canvas.setAttribute("aria-label", `${now.waiting} requests wait for a slot, ${now.queued} calls wait in queues`);
  for (const { canvas, curve } of view.curves) canvas.setAttribute("aria-label", `${curve.title}: ${curve.said(now)}`);
  view.listed.replaceChildren(...lists(frame));
  if (view.details.open) view.numbersOf.replaceChildren(...numbers(frame, now));
}

// The stream

async function* framesOf(response, onData) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    onData();
    unread += value;
    const blocks = unread.split("\n\n");
    unread = blocks.pop();
    for (const block of blocks) if (block.startsWith("data: ")) yield JSON.parse(block.slice(6));
  }
}

class Refusal extends Error {}

async function refusal(response) {
  const said = await response.json().then((body) => body.error?.message, () => "");
  return new Refusal(said || `the server answers ${response.status}`);
}

export function mount(element, { base = "", headers = {} } = {}) {
  const root = node("div", { className: "live" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(CSS);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  element.append(root);
  const view = build(root);
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const history = [];
  let frame = null;
  let saidAt = 0;
  let drawnAt = 0;
  let abort = null;
  let isOver = false;
  let timer = 0;
  let failures = 0;
  let round = 0; // of connecting: what an older one still does changes nothing

  const draw = (isForced = false) => {
    const at = performance.now();
    if (!frame || document.hidden || (!isForced && still.matches && at - drawnAt < 990)) return;
    const isDue = isForced || at - saidAt > 990;
    if (isDue) saidAt = at;
    drawnAt = at;
    show(view, root, frame, history, isDue);
  };

  const tell = (text) => { view.note.hidden = !text; if (view.note.textContent !== text) view.note.textContent = text; };

  const take = (next) => {
    frame = next;
    if (history.length && next.time <= history.at(-1).time) history.length = 0; // the server's clock was set back
    const now = totals(next);
    const lately = [...history.slice(-3), now];
    history.push({ ...now, writtenMean: sum(lately.map((one) => one.written)) / lately.length });
    while (history[0].time < next.time - CURVES_S - 2) history.shift();
    tell("");
    draw();
  };

  const watch = async () => {
    abort = new AbortController();
    let silence = 0;
    const heard = () => { clearTimeout(silence); silence = setTimeout(() => abort?.abort(), SILENCE_MS); };
    heard();
    try {
      const response = await fetch(`${base}/v1/live`, { headers, signal: abort.signal, cache: "no-store" });
      if (!response.ok) throw await refusal(response);
      for await (const next of framesOf(response, heard)) { failures = 0; take(next); }
    } finally {
      clearTimeout(silence);
    }
  };

  const run = async () => {
    const mine = ++round;
    let words = "The server has ended the stream; connecting again …";
    try {
      await watch();
    } catch (error) {
      words = error instanceof Refusal ? error.message : "The server is not there; connecting again …";
    }
    if (isOver || document.hidden || mine !== round) return;
    tell(words);
    timer = setTimeout(run, 1000 * PAUSES_S[Math.min(failures, PAUSES_S.length - 1)] * (0.8 + 0.4 * Math.random()));
    failures += 1;
  };

  // Nobody looks at a page that is hidden: the server need not make frames for it.
  const turn = () => {
    clearTimeout(timer);
    round += 1;
    abort?.abort();
    if (!document.hidden) timer = setTimeout(run, 0);
  };

  const resized = new ResizeObserver(() => draw(true));
  resized.observe(root);
  document.addEventListener("visibilitychange", turn);
  view.details.addEventListener("toggle", () => draw(true));
  view.say.textContent = "Connecting …";
  if (!document.hidden) run();

  return () => {
    isOver = true;
    clearTimeout(timer);
    abort?.abort();
    resized.disconnect();
    document.removeEventListener("visibilitychange", turn);
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
    root.remove();
  };
}
