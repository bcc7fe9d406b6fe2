// What else is served: predictors, models and handlers of the v2 protocol, each with a form made from what it says of itself.

import { html, useEffect, useState } from "./vendor/htm-preact.mjs";
import { call, json } from "./api.mjs";
import { CopyButton } from "./parts.mjs";
import { seconds, visible } from "./text.mjs";

const MOST_SERVICES = 300;
const MOST_READ = 50_000_000; // characters of an answer
const MOST_SHOWN = 200_000;
const NUMBERS = /^(U?INT|FP|BF)\d+$/;

export default function Services({ server }) {
  const [found, set] = useState(null);
  useEffect(() => {
    let isGone = false;
    look().then((services) => isGone || set(services));
    return () => (isGone = true);
  }, []);
  return html`
    <main class="view" tabindex="-1">
      <h1>Services</h1>
      <${Models} models=${server.models ?? []} />
      ${found?.upstreams.length > 0 && html`<${Upstreams} upstreams=${found.upstreams} />`}
      ${found === null && html`<p class="soft" role="status">Looking…</p>`}
      ${found?.trouble && html`<p class="note bad">${found.trouble}</p>`}
      ${found?.predictor && html`<h2>Predictor</h2><${Service} name="predictor" path="/predictions" state=${null} about=${found.predictor.about} fields=${found.predictor.fields} bodyOf=${(input) => ({ input })} />`}
      ${found?.handlers.length > 0 && html`<h2>Models and handlers of the v2 protocol</h2>${found.handlers.map((one) => html`<${Handler} key=${one.name} ...${one} />`)}`}
      ${found && !found.predictor && !found.handlers.length && !found.upstreams.length && !found.trouble && html`<p class="soft">Neither predictors nor handlers are served here. <a href="docs">The reference</a> has every endpoint.</p>`}
    </main>`;
}

function Models({ models }) {
  if (!models.length) return null;
  return html`
    <h2>Language models</h2>
    <div class="wide markdown" tabindex="0" role="region" aria-label="Language models"><table>
      <thead><tr><th>Name</th><th>State</th><th>Context</th><th>Takes</th><th>From</th></tr></thead>
      <tbody>${models.map(({ id, status, hasFailed, context, takesImages, owner }) => html`
        <tr key=${id}><td><bdi>${visible(id)}</bdi></td><td><${Badge} state=${hasFailed ? "failed" : status} /></td><td>${context ?? "–"}</td><td>${takesImages ? "text, pictures" : "text"}</td><td>${visible(owner) || "–"}</td></tr>`)}
      </tbody>
    </table></div>`;
}

function Upstreams({ upstreams }) {
  return html`
    <h2>Upstreams</h2>
    <div class="wide markdown" tabindex="0" role="region" aria-label="Upstreams"><table>
      <thead><tr><th>Address</th><th>State</th><th>Runs</th><th>Answered</th><th>Failed</th></tr></thead>
      <tbody>${upstreams.map(({ id, state, in_flight, concurrency, ok, failed }) => html`
        <tr key=${id}><td><bdi>${visible(String(id))}</bdi></td><td><${Badge} state=${String(state)} /></td><td>${Number(in_flight)} of ${Number(concurrency)}</td><td>${Number(ok)}</td><td>${Number(failed)}</td></tr>`)}
      </tbody>
    </table></div>
    <p class="soft small">As they were when this was opened; <a href="#/live">Live</a> follows them.</p>`;
}

function Badge({ state }) {
  if (!state) return null;
  const kind = /^(ready|loaded|upstream)$/i.test(state) ? "good" : /fail|unavailable|defunct/i.test(state) ? "bad" : "";
  return html`<span class=${`badge ${kind}`}>${visible(state).toLowerCase()}</span>`;
}

// What there is: { predictor, handlers, upstreams, trouble }.
async function look() {
  const [document, index, frame] = await Promise.all([json("/openapi.json").catch((error) => error), json("/v2/repository/index", { method: "POST", body: {} }).catch((error) => error), json("/v1/live?frames=1").catch(() => null)]);
  const trouble = document instanceof Error && document.status !== 404 ? document.message : "";
  const handlers = Array.isArray(index) ? index.slice(0, MOST_SERVICES).map(({ name, state, reason }) => ({ name: String(name), state: String(state), reason: String(reason ?? "") })) : [];
  const upstreams = Array.isArray(frame?.upstreams) ? frame.upstreams.slice(0, MOST_SERVICES) : [];
  return { trouble, handlers, upstreams, predictor: document instanceof Error ? null : predictorOf(document) };
}

function predictorOf(document) {
  const schemas = document.components?.schemas ?? {};
  if (!document.paths?.["/predictions"] || !schemas.Input) return null;
  const required = schemas.Input.required ?? [];
  const fields = Object.entries(schemas.Input.properties ?? {}).sort(([, a], [, b]) => (a["x-order"] ?? 0) - (b["x-order"] ?? 0)).map(([name, schema]) => {
    const whole = { ...resolved(schema.allOf?.[0] ?? {}, schemas), ...resolved(schema, schemas) };
    return { name, about: String(whole.description ?? ""), kind: kindOf(whole), choices: whole.enum, least: whole.minimum, most: whole.maximum, default: whole.default, isRequired: required.includes(name) };
  });
  return { fields, about: "One run of the predictor." };
}

function resolved(schema, schemas) {
  const name = schema.$ref?.split("/").at(-1);
  return name ? { ...schemas[name], ...schema } : schema;
}

function kindOf({ type, enum: choices, format }) {
  if (choices) return "choice";
  if (type === "boolean" || type === "integer" || type === "number") return type;
  if (type === "string") return format === "uri" ? "uri" : format === "password" ? "secret" : "text";
  return "json";
}

// A handler tells its tensors only when it is opened: there may be many.
function Handler({ name, state, reason }) {
  const [about, set] = useState(null);
  const path = `/v2/models/${encodeURIComponent(name)}`;
  const open = () => about ?? json(path).then(set, (error) => set({ error }));
  const inputs = about?.inputs ?? [];
  const fields = inputs.map((input) => ({ name: String(input.name), about: `${input.datatype} [${(input.shape ?? []).join(", ")}]`, kind: input.datatype === "BYTES" ? "text" : "json", tensor: input, isRequired: false }));
  return html`
    <details class="service" onToggle=${open}>
      <summary><b><bdi>${visible(name)}</bdi></b><${Badge} state=${state} />${reason && html`<span class="soft small">${visible(reason)}</span>`}</summary>
      ${about === null && html`<div class="soft">Looking…</div>`}
      ${about?.error && html`<div><p class="note bad">${about.error.message}</p></div>`}
      ${about && !about.error && (fields.length
        ? html`<${Form} path=${`${path}/infer`} fields=${fields} bodyOf=${(values) => ({ inputs: fields.filter((field) => values[field.name] !== undefined).map((field) => tensorOf(field.tensor, values[field.name])) })} />`
        : html`<${Raw} path=${`${path}/infer`} />`)}
    </details>`;
}

function Service({ name, path, state, about, fields, bodyOf }) {
  return html`
    <details class="service" open>
      <summary><b>${visible(name)}</b><${Badge} state=${state} /><span class="soft small">${about}</span></summary>
      <${Form} path=${path} fields=${fields} bodyOf=${bodyOf} />
    </details>`;
}

// A tensor out of what a person wrote: a number, a list, or text. -1 in the shape is what the data have.
function tensorOf({ name, datatype, shape = [] }, value) {
  const data = (Array.isArray(value) ? value : [value]).flat(Infinity);
  if (NUMBERS.test(datatype) && !data.every((one) => typeof one === "number")) throw new Error(`${name}: numbers are wanted, as 1 or [1, 2]`);
  const fixed = shape.filter((n) => n > 0).reduce((a, b) => a * b, 1);
  const nOpen = shape.filter((n) => n < 0).length;
  const sizes = shape.map((n) => (n > 0 ? n : nOpen === 1 ? Math.floor(data.length / fixed) : 1));
  return { name, datatype, shape: nOpen > 1 || !shape.length ? [data.length] : sizes, data };
}

function Raw({ path }) {
  const fields = [{ name: "inputs", kind: "json", about: "tensors: it does not say which it takes", isRequired: true, default: [{ name: "x", datatype: "INT32", shape: [1], data: [1] }] }];
  return html`<${Form} path=${path} fields=${fields} bodyOf=${(values) => values} />`;
}

function Form({ path, fields, bodyOf }) {
  const [values, set] = useState(() => Object.fromEntries(fields.map((field) => [field.name, begun(field)])));
  const [answer, tell] = useState(null);
  const [running, run] = useState(null);
  useEffect(() => () => running?.abort(), [running]);
  const submit = async (event) => {
    event.preventDefault();
    if (running) return running.abort();
    const mine = new AbortController();
    const began = performance.now();
    try {
      const body = bodyOf(Object.fromEntries(fields.flatMap((field) => valueOf(field, values[field.name]))));
      run(mine);
      tell(null);
      const text = (await (await call(path, { body, signal: mine.signal })).text()).slice(0, MOST_READ);
      tell({ ...shown(text), ms: performance.now() - began });
    } catch (error) {
      tell({ error: mine.signal.aborted ? "Stopped." : visible(error.message) });
    }
    return run(null);
  };
  return html`
    <form onSubmit=${submit}>
      ${fields.map((field) => html`<${Field} key=${field.name} field=${field} value=${values[field.name]} change=${(value) => set({ ...values, [field.name]: value })} />`)}
      <div class="buttons"><button type="submit" class="main">${running ? "Stop" : "Run"}</button>${answer?.ms !== undefined && html`<span class="soft small">${seconds(answer.ms)}</span>`}<span class="gap"></span>${answer?.text && html`<${CopyButton} text=${() => answer.text} />`}</div>
      <div role="status">${answer?.error && html`<p class="note bad">${answer.error}</p>`}${answer?.text !== undefined && html`<${Output} text=${answer.text} />`}${answer?.whole && html`<details class="fold"><summary>Whole answer</summary><pre tabindex="0">${visible(answer.whole.slice(0, MOST_SHOWN))}</pre></details>`}</div>
    </form>`;
}

// The answer, and the pictures that are in it.
function Output({ text }) {
  const pictures = [...text.matchAll(/data:image\/(?:png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]+/g)].slice(0, 20).map(([url]) => url);
  const words = text.replace(/data:([\w/+.-]+);base64,[A-Za-z0-9+/=]{200,}/g, "data:$1;base64,…");
  return html`${pictures.length > 0 && html`<div class="pictures">${pictures.map((url, i) => html`<img src=${url} alt=${`Picture ${i + 1} of the answer`} />`)}</div>`}<pre class="answer-text" tabindex="0" dir="ltr">${visible(words.slice(0, MOST_SHOWN))}</pre>`;
}

function Field({ field, value, change }) {
  const { name, about, kind, choices, least, most, isRequired } = field;
  const hear = (event) => change(kind === "boolean" ? event.target.checked : event.target.value);
  const label = html`<span><bdi>${visible(name)}</bdi> ${about && html`<small class="soft">${visible(about)}</small>`}</span>`;
  if (kind === "boolean") return html`<label class="field"><span><input type="checkbox" checked=${value} onChange=${hear} /> <bdi>${visible(name)}</bdi> <small class="soft">${visible(about)}</small></span></label>`;
  const members = { required: isRequired, onInput: hear, value };
  return html`
    <label class="field">${label}
      ${kind === "choice" && html`<select ...${members}>${!isRequired && html`<option value="">default</option>`}${choices.map((choice) => html`<option value=${JSON.stringify(choice)}>${visible(choice)}</option>`)}</select>`}
      ${(kind === "integer" || kind === "number") && html`<input type="number" min=${least} max=${most} step=${kind === "integer" ? 1 : "any"} ...${members} />`}
      ${kind === "uri" && html`<input type="text" placeholder="https://… or data:…" ...${members} /><input type="file" aria-label=${`File for ${name}`} onChange=${(event) => fileTo(event, change)} />`}
      ${kind === "secret" && html`<input type="password" autocomplete="off" ...${members} />`}
      ${kind === "text" && html`<textarea rows="2" dir="auto" ...${members}></textarea>`}
      ${kind === "json" && html`<textarea rows="2" class="code" spellcheck="false" placeholder="JSON" ...${members}></textarea>`}
    </label>`;
}

function fileTo(event, change) {
  const [file] = event.target.files;
  if (!file || file.size > 20_000_000) return;
  const reader = new FileReader();
  reader.onload = () => change(reader.result);
  reader.readAsDataURL(file);
}

function begun({ kind, default: value }) {
  if (kind === "boolean") return value === true;
  if (value === undefined || value === null) return "";
  return kind === "json" || kind === "choice" ? JSON.stringify(value) : String(value);
}

// [[name, value]], or nothing for a field that was left empty. Throws with the field's name.
function valueOf({ name, kind }, value) {
  if (kind === "boolean") return [[name, value]];
  if (value === "") return [];
  if (kind === "integer" || kind === "number") return [[name, Number(value)]];
  if (kind !== "json" && kind !== "choice") return [[name, value]];
  try {
    return [[name, JSON.parse(value)]];
  } catch (error) {
    throw new Error(`${name}: not JSON (${error.message})`);
  }
}

// The answer as people read it: of a prediction its output, with the rest below.
function shown(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return { text };
  }
  const whole = JSON.stringify(value, null, 2);
  if (value?.status !== "succeeded" || value.output === undefined) return { text: whole };
  return { text: typeof value.output === "string" ? value.output : JSON.stringify(value.output, null, 2), whole };
}
