// Reads a stream in a browser, and reads on behind the last event when the connection breaks:
//
//   import { stream } from "./stream.mjs";
//   const body = { model: "any", messages: [{ role: "user", content: "Tell a story." }] };
//   for await (const chunk of stream("/v1/chat/completions", body)) show(chunk.choices[0]?.delta.content ?? "");
//
// EventSource cannot send a body. What it does by itself is done here by an Idempotency-Key, under which the server keeps
// the stream, and by Last-Event-ID. The iterator yields each event's data once. It throws what the server refuses with, or
// what broke the connection `tries` times without an event in between; an AbortSignal ends it.

const AGAIN = new Set([409, 429, 502, 503, 504]); // the stream has not begun, or somebody in between is away
const LONGEST_PAUSE = 10_000; // ms

export async function* stream(url, body, { headers = {}, signal, tries = 6 } = {}) {
  const key = Array.from(crypto.getRandomValues(new Uint32Array(4)), (word) => word.toString(16)).join("-");
  let last = null; // the id of the last event
  for (let n = 1, pause = 250; ; n += 1, pause = Math.min(2 * pause, LONGEST_PAUSE)) {
    let broken = new Error("the stream has ended without its last event");
    try {
      const answer = await fetch(url, {
        method: "POST",
        body: JSON.stringify({ ...body, stream: true }),
        headers: { "Content-Type": "application/json", "Idempotency-Key": key, ...(last !== null && { "Last-Event-ID": last }), ...headers },
        signal,
      });
      if (!answer.ok) throw await refusal(answer);
      for await (const event of events(answer.body)) {
        [last, n, pause] = [event.id ?? last, 0, 250];
        if (event.data === "[DONE]") return;
        const chunk = JSON.parse(event.data);
        if (chunk.error) throw Object.assign(new Error(chunk.error.message), { status: 500 }); // the answer ends so
        yield chunk;
      }
    } catch (error) {
      if (signal?.aborted || (error.status && !AGAIN.has(error.status))) throw error;
      broken = error;
    }
    if (n >= tries) throw broken;
    await new Promise((resolve) => setTimeout(resolve, Math.max(pause, 1000 * (broken.retryAfter ?? 0))));
    signal?.throwIfAborted();
  }
}

async function refusal(answer) {
  const said = await answer.json().catch(() => null);
  const error = new Error(said?.error?.message ?? `${answer.status} ${answer.statusText}`);
  return Object.assign(error, { status: answer.status, retryAfter: Number(answer.headers.get("Retry-After")) || 0 });
}

// Yields { id, data } of each whole event. One that the connection has cut comes again, for its id was not seen.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (let read = await reader.read(); !read.done; read = await reader.read()) {
      const blocks = (text + read.value).split("\n\n");
      text = blocks.pop();
      for (const block of blocks) {
        const lines = block.split("\n");
        const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
        const id = lines.findLast((line) => line.startsWith("id:"))?.slice(3).trim();
        if (data.length) yield { id, data: data.join("\n") };
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the server hears that nobody reads
  }
}
