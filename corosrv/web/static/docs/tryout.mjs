// The panel that sends an operation's request and shows what comes back.

import { copyButton, element } from "./dom.mjs";
import { Events, send, textOf } from "./stream.mjs";

export function tryout(operation, server, schemas, key) {
  const inputs = new Map();
  const body = operation.body && element("textarea", { class: "code", spellcheck: "false", "aria-label": "Body", oninput: grow });
  const output = element("div", { class: "output", hidden: true });
  const sendButton = element("button", { type: "submit", class: "send" }, "Send");
  const stopButton = element("button", { type: "button", class: "quiet", hidden: true, onclick: () => running?.abort() }, "Stop");
  let running = null;

  const parameters = operation.parameters.map((parameter) => {
    const input = element("input", { placeholder: schemas.words(parameter.schema), spellcheck: "false", required: parameter.required });
    inputs.set(parameter, input);
    return element("label", { class: "parameter" }, element("code", {}, parameter.name), input);
  });
  const form = element(
    "form",
    { class: "tryout", onsubmit: start },
    ...parameters,
    body && examples(),
    body,
    element("div", { class: "buttons" }, sendButton, stopButton, element("span", { class: "gap" }), element("span", { class: "curl" }, "curl"), copyButton(curl)),
    output);
  if (body) fill(operation.examples[0]?.[1] ?? schemas.example(operation.body));
  return form;

  function examples() {
    if (operation.examples.length < 2) return null;
    const chips = operation.examples.map(([title, value]) =>
      element("button", { type: "button", class: "chip", onclick: () => fill(value) }, title));
    return element("div", { class: "chips" }, ...chips);
  }

  function fill(value) {
    body.value = JSON.stringify(value, null, 2);
    grow();
  }

  function grow() {
    body.rows = Math.min(Math.max(body.value.split("\n").length, 3), 24);
  }

  function url() {
    let path = operation.path;
    const query = new URLSearchParams();
    for (const [parameter, input] of inputs) {
      if (parameter.in === "path") path = path.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
      else if (input.value !== "") query.set(parameter.name, input.value);
    }
    const asked = query.size ? `?${query}` : "";
    return `${location.origin}${server === "/" ? "" : server}${path}${asked}`;
  }

  function curl() {
    const parts = ["curl"];
    if (operation.method !== "POST" && operation.method !== "GET") parts.push(`-X ${operation.method}`);
    if (operation.method === "POST" && !body) parts.push("-X POST");
    parts.push(quoted(url()));
    if (key()) parts.push("-H 'Authorization: Bearer KEY'");
    if (body) parts.push("-H 'Content-Type: application/json'", `-d ${quoted(body.value)}`);
    return parts.join(" ");
  }

  async function start(event) {
    event.preventDefault();
    running?.abort();
    const mine = (running = new AbortController());
    const view = new Output(output);
    sendButton.disabled = true;
    stopButton.hidden = false;
    try {
      const request = { url: url(), method: operation.method, body: body?.value, key: key(), signal: mine.signal };
      view.end(await send(request, (heard) => view.hear(heard)));
    } catch (error) {
      view.fail(mine.signal.aborted ? "stopped" : String(error.message ?? error));
    }
    sendButton.disabled = false;
    stopButton.hidden = true;
  }
}

// What came back: a line of figures, the text as it grows, and everything as it was sent.
class Output {
  constructor(place) {
    this.line = element("div", { class: "figures" }, element("span", { class: "status" }, "…"));
    this.text = element("div", { class: "text", hidden: true });
    this.raw = element("pre", { class: "code raw" });
    this.events = null;
    this.nEvents = 0;
    this.whole = "";
    place.replaceChildren(this.line, this.text, this.raw);
    place.hidden = false;
  }

  hear({ status, type, ms, piece }) {
    if (status !== undefined) {
      const kind = status < 300 ? "good" : "bad";
      this.line.replaceChildren(element("span", { class: `status ${kind}` }, String(status)), figure(ms, "to headers"));
      this.isJson = type.includes("json");
      this.events = type.includes("event-stream") ? new Events() : null;
      this.began = performance.now() - ms;
    } else if (this.events) this.stream(piece);
    else this.whole += piece;
  }

  stream(piece) {
    for (const data of this.events.take(piece)) {
      this.nEvents += 1;
      const text = textOf(data);
      if (text && this.text.hidden) this.line.append(figure(performance.now() - this.began, "to first text"));
      this.text.hidden = this.text.hidden && !text;
      this.text.append(text);
      const atEnd = this.raw.scrollTop + this.raw.clientHeight >= this.raw.scrollHeight - 4;
      this.raw.append(`${data}\n`);
      if (atEnd) this.raw.scrollTop = this.raw.scrollHeight;
    }
  }

  end(ms) {
    this.line.append(figure(ms, "in all"));
    if (this.events) this.line.append(element("span", { class: "figure" }, `${this.nEvents} events`));
    else this.raw.textContent = this.isJson ? pretty(this.whole) : this.whole || "(nothing)";
  }

  fail(words) {
    this.line.append(element("span", { class: "status bad" }, words));
  }
}

function figure(ms, words) {
  const number = ms < 1000 ? `${ms.toFixed(ms < 10 ? 1 : 0)} ms` : `${(ms / 1000).toFixed(2)} s`;
  return element("span", { class: "figure" }, element("b", {}, number), ` ${words}`);
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
