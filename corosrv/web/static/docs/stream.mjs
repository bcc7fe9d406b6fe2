// Sends a request, and tells of its answer as it arrives.

// Calls back with { status, type, ms } once, then with { piece } for each piece of the body, until its end.
export async function send({ url, method, body, key, signal }, tell) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  const began = performance.now();
  const answer = await fetch(url, { method, headers, body: body || undefined, signal });
  const type = answer.headers.get("Content-Type") ?? "";
  tell({ status: answer.status, type, ms: performance.now() - began });
  if (!answer.body) return performance.now() - began;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) tell({ piece: read.value });
  return performance.now() - began;
}

// Server-sent events out of pieces that may end anywhere.
export class Events {
  constructor() {
    this.rest = "";
  }

  take(piece) {
    const blocks = (this.rest + piece).split("\n\n");
    this.rest = blocks.pop();
    return blocks.map(dataOf).filter((data) => data !== "");
  }
}

function dataOf(block) {
  const lines = block.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).trimStart()).join("\n");
}

// The text that an event adds, in any of the dialects; nothing if it adds none.
export function textOf(data) {
  let event;
  try {
    event = JSON.parse(data);
  } catch {
    return "";
  }
  const choice = event.choices?.[0];
  const delta = choice?.delta;
  const call = delta?.tool_calls?.[0]?.function;
  const found = [
    delta?.reasoning_content, delta?.content, call?.name && `${call.name}(`, call?.arguments, choice?.text,
    event.delta?.text, event.delta?.thinking, event.delta?.partial_json,
    typeof event.delta === "string" ? event.delta : undefined, event.content,
  ];
  return found.filter((text) => typeof text === "string").join("");
}
