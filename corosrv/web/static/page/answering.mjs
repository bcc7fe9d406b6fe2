// Answers as they are made: sends a conversation to a model, and tells listeners how its answer grows.

import { ApiError, call, events, health } from "./api.mjs";
import { messages } from "./tree.mjs";

const SAVE_MS = 2000;
const MOST_WAITING_MS = 1_800_000;
const MOST_TEXT = 2_000_000;

export class Answering {
  constructor(store) {
    this.store = store;
    this.running = new Map(); // answer id -> { controller, state }
    this.listeners = new Map(); // answer id -> callbacks
    this.watchers = new Set(); // told when one begins or ends, and of errors 401
  }

  listen(id, listener) {
    if (!this.listeners.has(id)) this.listeners.set(id, new Set());
    this.listeners.get(id).add(listener);
    return () => this.listeners.get(id)?.delete(listener);
  }

  tell(id) {
    for (const listener of this.listeners.get(id) ?? []) listener();
  }

  note(event) {
    for (const watcher of this.watchers) watcher(event);
  }

  stateOf(id) {
    return this.running.get(id)?.state ?? null;
  }

  stop(ids = [...this.running.keys()]) {
    for (const id of ids) this.running.get(id)?.controller.abort();
  }

  // Fills an answer; ends when it has ended, however that is.
  async start(conversation, turn, answer) {
    const run = { controller: new AbortController(), state: "sending" };
    this.running.set(answer.id, run);
    this.note({ began: answer });
    this.store.save(conversation);
    const saving = setInterval(() => this.store.save(conversation), SAVE_MS);
    const closed = () => this.store.save(conversation);
    addEventListener("pagehide", closed);
    try {
      await this.fill(conversation, turn, answer, run);
    } catch (error) {
      this.fail(answer, error, run);
    }
    removeEventListener("pagehide", closed);
    clearInterval(saving);
    this.running.delete(answer.id);
    this.store.save(conversation);
    this.tell(answer.id);
    this.note({ ended: answer });
  }

  fail(answer, error, { controller }) {
    if (controller.signal.aborted) answer.finish = "stopped";
    else if (answer.text || answer.thoughts || answer.calls.length) answer.error = `The answer broke off: ${error.message} What had arrived is kept.`;
    else answer.error = error.message;
    if (error.status === 401) this.note({ needsKey: true });
  }

  async fill(conversation, turn, answer, run) {
    const body = bodyOf(conversation, turn, answer);
    const stream = await this.send(body, answer, run);
    const meter = new Meter(answer);
    run.state = "reading";
    this.tell(answer.id);
    let frame = null;
    const show = () => {
      frame = null;
      this.tell(answer.id);
    };
    try {
      for await (const event of events(stream)) {
        take(answer, event, meter);
        if (answer.text && run.state !== "writing") run.state = "writing";
        if (answer.text.length > MOST_TEXT) throw new ApiError(0, "The answer is longer than this page keeps.");
        frame ??= setTimeout(show, 40);
      }
    } finally {
      clearTimeout(frame);
      meter.end();
    }
  }

  // Sends until the server takes it: while a model is loaded it says so with 503, and is asked again.
  async send(body, answer, run) {
    const until = performance.now() + MOST_WAITING_MS;
    for (;;) {
      try {
        run.sent = performance.now();
        answer.figures = { sent: run.sent };
        return await call("/v1/chat/completions", { body, signal: run.controller.signal });
      } catch (error) {
        if (error.status !== 503 || performance.now() > until) throw error;
        const { state, isReady } = await health();
        if (state === "failed") throw error;
        run.state = isReady || state === "draining" ? "waiting" : "loading";
        run.words = error.message;
        this.tell(answer.id);
        await pause(1000 * Math.min(error.wait ?? 1, 10), run.controller.signal);
      }
    }
  }
}

function bodyOf(conversation, turn, answer) {
  const body = { model: answer.model, messages: messages(conversation, turn, answer.side), stream: true, stream_options: { include_usage: true }, ...conversation.options };
  const stop = conversation.stop.split("\n").filter(Boolean);
  if (stop.length) body.stop = stop;
  if (conversation.tools.trim()) body.tools = toolsOf(conversation.tools);
  return body;
}

// The tools that a person wrote down, as OpenAI's API wants them; bare functions will do. Throws with what is wrong.
export function toolsOf(text) {
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new ApiError(0, `Tools: not JSON (${error.message})`);
  }
  const list = Array.isArray(tools) ? tools : [tools];
  if (!list.every((tool) => typeof (tool?.function ?? tool)?.name === "string")) throw new ApiError(0, "Tools: each needs a `name`");
  return list.map((tool) => (tool.function ? tool : { type: "function", function: tool }));
}

function take(answer, event, meter) {
  const choice = event.choices?.[0];
  const delta = choice?.delta ?? {};
  const adds = delta.content || delta.reasoning_content || delta.tool_calls?.length;
  if (adds) meter.token();
  if (typeof delta.content === "string") answer.text += delta.content;
  const thought = delta.reasoning_content ?? delta.reasoning;
  if (typeof thought === "string") answer.thoughts += thought;
  for (const call of delta.tool_calls ?? []) takeCall(answer.calls, call);
  if (choice?.finish_reason) answer.finish = String(choice.finish_reason);
  if (event.usage) meter.use(event.usage);
  if (event.timings) meter.time(event.timings);
}

function takeCall(calls, { index = calls.length, id, function: part }) {
  if (!Number.isInteger(index) || index < 0 || index > 199) return;
  while (calls.length <= index) calls.push({ id: "", name: "", arguments: "" });
  const held = calls[index];
  if (id) held.id = String(id);
  if (part?.name) held.name += part.name;
  if (typeof part?.arguments === "string") held.arguments += part.arguments;
}

// How fast an answer came.
class Meter {
  constructor(answer) {
    this.answer = answer;
    this.sent = answer.figures.sent;
    this.n = 0;
    this.figures = answer.figures = {};
  }

  token() {
    const now = performance.now();
    this.n += 1;
    this.first ??= now;
    this.last = now;
    this.figures.ttft = this.first - this.sent;
    if (!this.isTold) this.figures.tokens = this.n;
    if (!this.isTimed && this.n > 1) this.figures.perSecond = (1000 * (this.figures.tokens - 1)) / (now - this.first);
  }

  use({ completion_tokens: tokens, prompt_tokens: prompt, prompt_tokens_details: details }) {
    this.isTold = true;
    Object.assign(this.figures, { tokens, prompt, cached: details?.cached_tokens ?? 0 });
    if (tokens > 1 && this.last > this.first) this.figures.perSecond = (1000 * (tokens - 1)) / (this.last - this.first);
  }

  time({ predicted_per_second: perSecond }) {
    if (perSecond > 0) {
      this.isTimed = true;
      this.figures.perSecond = perSecond;
    }
  }

  end() {
    this.figures.ms = performance.now() - this.sent;
  }
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    }, { once: true });
  });
}
