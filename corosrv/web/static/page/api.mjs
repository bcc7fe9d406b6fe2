// The server as the page sees it: addresses beside the page, the key, errors in words, streams of events.

import { visible } from "./text.mjs";

const KEY = "corosrv-key"; // as /docs has it
export const base = new URL(".", location.href.split(/[?#]/)[0]).href.replace(/\/$/, "");

export const key = {
  value: read(),
  set(value) {
    this.value = value.trim();
    try {
      if (this.value) sessionStorage.setItem(KEY, this.value);
      else sessionStorage.removeItem(KEY);
    } catch {
      // Storage is switched off: the key lives as long as the page.
    }
  },
};

function read() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

export function headers() {
  return key.value ? { Authorization: `Bearer ${key.value}` } : {};
}

export class ApiError extends Error {
  constructor(status, message, code = null, wait = null) {
    super(visible(message).slice(0, 2000));
    Object.assign(this, { status, code, wait });
  }
}

// The answer to a request. Throws ApiError with the server's own words.
export async function call(path, { method, body, signal } = {}) {
  const sent = body === undefined ? {} : { "Content-Type": "application/json" };
  let answer;
  try {
    answer = await fetch(base + path, { method: method ?? (body === undefined ? "GET" : "POST"), headers: { ...headers(), ...sent }, body: body === undefined ? undefined : JSON.stringify(body), signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "The server cannot be reached. It may have ended, or the network is down.");
  }
  if (!answer.ok) throw await errorOf(answer);
  return answer;
}

export const json = async (path, options) => (await call(path, options)).json();

async function errorOf(answer) {
  const text = (await answer.text().catch(() => "")).slice(0, 20_000);
  const wait = Number(answer.headers.get("Retry-After")) || null;
  try {
    const error = JSON.parse(text).error;
    return new ApiError(answer.status, (typeof error === "string" ? error : error?.message) || text || `the server answers ${answer.status}`, error?.code ?? null, wait);
  } catch {
    return new ApiError(answer.status, `the server answers ${answer.status} ${answer.statusText}`.trim(), null, wait);
  }
}

// The events of a stream, parsed. Throws ApiError for one that tells an error, and if the stream ends without [DONE].
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (let read = await reader.read(); !read.done; read = await reader.read()) {
      const blocks = (rest + read.value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
        if (data === "[DONE]") return;
        if (data) yield eventOf(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
  throw new ApiError(0, "The stream ended before the answer did.");
}

function eventOf(data) {
  const event = JSON.parse(data);
  if (event.error) throw new ApiError(event.error.code ?? 500, event.error.message ?? String(event.error));
  return event;
}

// The models, as the page needs them.
export async function models() {
  const { data } = await json("/v1/models");
  return data.slice(0, 1000).map((model) => ({
    id: String(model.id),
    status: model.status?.value ?? "loaded",
    hasFailed: model.status?.failed === true,
    progress: model.status?.progress ?? null,
    takesImages: (model.architecture?.input_modalities ?? []).includes("image") || (model.capabilities ?? []).includes("multimodal"),
    context: model.meta?.n_ctx ?? null,
    owner: model.owned_by ?? "",
  }));
}

// What /health says: { isReady, state, message }.
export async function health() {
  try {
    const answer = await fetch(`${base}/health`, { headers: headers() });
    const said = await answer.json().catch(() => ({}));
    const error = said.error?.message ?? (typeof said.error === "string" ? said.error : "");
    return { isReady: answer.ok, state: visible(said.state ?? said.status ?? String(answer.status)), message: visible(error) };
  } catch {
    return { isReady: false, state: "unreachable", message: "The server cannot be reached." };
  }
}
