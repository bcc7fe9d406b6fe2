// One conversation: its turns, their answers, and what people do with them.

import { html, useCallback, useEffect, useLayoutEffect, useReducer, useRef, useState } from "./vendor/htm-preact.mjs";
import { Composer } from "./composer.mjs";
import { CopyButton, Icon } from "./parts.mjs";
import { SettingsDialog } from "./settings.mjs";
import { add, addAnswer, branch, newAnswer, newTurn, path, shownAnswer, siblings, variants } from "./tree.mjs";
import { bytes, oneLine, seconds, visible } from "./text.mjs";

// What draws answers is half of the page: it comes when the page stands, and until then the beginning of a text is shown as it is.
const AT_FIRST = 2000; // characters: to lay out a long text would hold the page
const drawing = { Markdown: null, coming: null };
function loadDrawing() {
  return (drawing.coming ??= import("./markdown.mjs").then(
    ({ Markdown }) => (drawing.Markdown = Markdown),
    () => (drawing.coming = null), // the next answer asks again
  ));
}
addEventListener("load", () => (window.requestIdleCallback ?? setTimeout)(loadDrawing));

const IDEAS = ["Explain how a hash table works, with an example", "Write a haiku about the sea", "Plan a weekend in a city I do not know"];

export function Chat({ conversation, keep, store, answering, server, look, choose, askKey }) {
  const [, redraw] = useReducer((n) => n + 1, 0);
  const [isSetting, set] = useState(false);
  const turns = path(conversation);
  const sides = conversation.models[1] ? [0, 1] : [0];
  const running = turns.flatMap((turn) => turn.answers).filter(({ id }) => answering.running.has(id));
  const scroll = useScroll(conversation, turns.length);

  const answer = useCallback((turn, side, model) => {
    const made = addAnswer(turn, newAnswer(side, model));
    answering.start(conversation, turn, made);
    redraw();
  }, [conversation]);
  const ask = useCallback((said, parent) => {
    const turn = add(conversation, newTurn(parent, said));
    conversation.title ||= oneLine(said.text || (said.images?.length ? "A picture" : "Results of tools"));
    keep(conversation);
    for (const [side, model] of conversation.models.entries()) if (model || side === 0) answer(turn, side, model);
    scroll.stick();
  }, [conversation]);
  const again = useCallback((turn, side) => {
    const isLast = !siblings(conversation, turn.id).length;
    const model = conversation.models[side] || conversation.models[0];
    if (isLast) return answer(turn, side, model);
    // Below it others have gone on: they keep the answer that they had.
    return ask({ text: turn.text, images: turn.images, results: turn.results }, turn.parent);
  }, [conversation]);
  const change = useCallback((members) => {
    Object.assign(conversation, members);
    if (store.get(conversation.id)) store.save(conversation);
    redraw();
  }, [conversation]);
  const pick = useCallback((parent, id) => change({ picked: { ...conversation.picked, [parent]: id } }), [conversation]);
  const fork = useCallback((turn) => {
    const made = branch(conversation, turn);
    store.save(made);
    choose(made.id);
  }, [conversation]);

  return html`
    <main class="chat">
      <${Head} conversation=${conversation} change=${change} models=${server.models ?? []} open=${() => set(true)} />
      ${store.trouble && html`<p class="note bad" role="alert">${store.trouble}</p>`}
      <div class="scroll" ref=${scroll.place} onScroll=${scroll.onScroll} tabindex="-1">
        <div class=${`turns ${sides.length > 1 ? "two" : ""}`}>
          ${turns.length === 0 && html`<${Empty} server=${server} askKey=${askKey} ask=${(text) => ask({ text }, "")} />`}
          ${turns.map((turn) => html`<${Turn} key=${turn.id} turn=${turn} conversation=${conversation} answering=${answering} again=${again} ask=${ask} pick=${pick} fork=${fork} change=${redraw} store=${store} scroll=${scroll} askKey=${askKey} />`)}
        </div>
      </div>
      <${Composer} conversation=${conversation} server=${server} isRunning=${running.length > 0} send=${(said) => ask(said, turns.at(-1)?.id ?? "")} stop=${() => answering.stop(running.map(({ id }) => id))} />
      ${isSetting && html`<${SettingsDialog} conversation=${conversation} change=${change} close=${() => set(false)} />`}
    </main>`;
}

// The end stays in sight while an answer grows, unless its reader has scrolled up.
function useScroll(conversation, nTurns) {
  const place = useRef();
  const held = useRef({ isStuck: true }).current;
  held.onScroll ??= ({ currentTarget }) => {
    const { scrollTop, scrollHeight, clientHeight } = currentTarget; // place is empty once another page is shown
    held.isStuck = scrollHeight - scrollTop - clientHeight < 60;
  };
  held.follow ??= () => {
    if (held.isStuck && place.current) place.current.scrollTop = place.current.scrollHeight;
  };
  held.stick ??= () => {
    held.isStuck = true;
    requestAnimationFrame(held.follow);
  };
  useEffect(() => {
    const watch = new ResizeObserver(() => held.follow());
    watch.observe(place.current.firstElementChild);
    watch.observe(place.current);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => held.stick(), [conversation.id, nTurns]);
  return { place, ...held };
}

function Head({ conversation, change, models, open }) {
  const [first, second] = conversation.models;
  const choose = (side) => (event) => change({ models: conversation.models.map((model, i) => (i === side ? event.target.value : model)) });
  const other = models.find(({ id }) => id !== first)?.id ?? first;
  return html`
    <div class="head">
      <h1 class="hidden">${oneLine(conversation.title) || "New chat"}</h1>
      <${ModelChoice} label="Model" value=${first} models=${models} onChange=${choose(0)} />
      ${second && html`<${ModelChoice} label="Second model" value=${second} models=${models} onChange=${choose(1)} />`}
      <span class="gap"></span>
      <button type="button" class=${`quiet ${second ? "on" : ""}`} aria-pressed=${Boolean(second)} disabled=${!first} title="Two answers side by side" onClick=${() => change({ models: [first, second ? "" : other] })}><${Icon} name="two" /><span class="not-phone">Compare</span></button>
      <button type="button" class=${`quiet ${conversation.system ? "on" : ""}`} title="Instructions and sampling" onClick=${open}><${Icon} name="settings" /><span class="not-phone">Settings</span></button>
    </div>`;
}

function ModelChoice({ label, value, models, onChange }) {
  const isKnown = models.some(({ id }) => id === value);
  return html`
    <select aria-label=${label} value=${value} onChange=${onChange}>
      ${!isKnown && html`<option value=${value} disabled=${!value}>${value ? `${visible(value)} (not served)` : "No model"}</option>`}
      ${models.map(({ id, status, hasFailed }) => html`<option value=${id} key=${id}>${visible(id)}${hasFailed ? " (failed)" : status === "loaded" ? "" : ` (${status})`}</option>`)}
    </select>`;
}

function Empty({ server: { models, health, error }, ask, askKey }) {
  if (models === null) return html`<div class="empty" aria-busy="true"></div>`;
  if (error?.status === 401) return html`<div class="empty"><h2>This server asks for a key</h2><p class="soft">Whoever runs it can give you one.</p><button type="button" class="main" onClick=${askKey}>Enter the key</button></div>`;
  if (!models.length && health.state === "unreachable") return html`<div class="empty"><h2>The server cannot be reached</h2><p class="soft">This page asks again by itself.</p></div>`;
  if (!models.length) return html`<${NoModel} error=${error} />`;
  const [coming] = models.filter(({ status }) => status === "loading" || status === "downloading");
  if (!health.isReady || coming) return html`<${Coming} model=${coming ?? models[0]} health=${health} />`;
  return html`
    <div class="empty">
      <h2>What would you like to know?</h2>
      <p class="soft">Conversations stay in this browser. The model can be wrong: check what matters.</p>
      <div class="ideas">${IDEAS.map((idea) => html`<button type="button" class="quiet" key=${idea} onClick=${() => ask(idea)}>${idea}</button>`)}</div>
    </div>`;
}

function NoModel({ error }) {
  return html`
    <div class="empty">
      <h2>No model is served here</h2>
      ${error && html`<p class="note bad">${error.message}</p>`}
      <p class="soft">Start the server with one, for example from a hub:</p>
      <pre class="command">corosrv serve --model hf:OWNER/REPO:Q4_K_M</pre>
      <p class="soft">or from a file: <code>corosrv serve --model path/to/model.gguf</code>. This page finds it by itself.</p>
      <p><a href="#/services">What else is served here</a></p>
    </div>`;
}

function Coming({ model, health }) {
  if (health.state === "failed") return html`<div class="empty"><h2>The model could not be loaded</h2><p class="note bad">${health.message}</p></div>`;
  const { progress } = model;
  const isLoad = model.status === "downloading";
  return html`
    <div class="empty" role="status">
      <h2>${visible(model.id)} ${isLoad ? "is being downloaded" : "is being loaded"}</h2>
      <progress max=${progress?.total || undefined} value=${progress?.total ? progress.bytes : undefined} aria-label="Progress"></progress>
      <p class="soft">${progress?.total ? `${bytes(progress.bytes)} of ${bytes(progress.total)}` : health.message || "One moment."} You can write already: the message waits until the model is there.</p>
    </div>`;
}

function Turn({ turn, conversation, answering, again, ask, pick, fork, change, store, scroll, askKey }) {
  const [isEditing, edit] = useState(false);
  const twins = siblings(conversation, turn.parent);
  const sides = variants(turn, 1).length ? [0, 1] : [0];
  return html`
    <article class="turn">
      <section class="said" aria-label="You">
        ${turn.results.map((result) => html`<details class="fold"><summary>Result of <code>${visible(result.name)}</code></summary><pre>${visible(result.content)}</pre></details>`)}
        ${turn.images.length > 0 && html`<div class="pictures">${turn.images.map((url, i) => html`<img src=${url} alt=${`Picture ${i + 1}`} />`)}</div>`}
        ${isEditing
          ? html`<${EditForm} text=${turn.text} close=${() => edit(false)} done=${(text) => { edit(false); ask({ text, images: turn.images }, turn.parent); }} />`
          : turn.text && html`<p class="words" dir="auto">${turn.text}</p>`}
        ${!isEditing && html`
          <div class="actions">
            <${Steps} list=${twins} current=${turn} pick=${(one) => pick(turn.parent, one.id)} what="message" />
            <${CopyButton} text=${() => turn.text} />
            ${!turn.results.length && html`<button type="button" class="quiet" onClick=${() => edit(true)}>Edit</button>`}
            <button type="button" class="quiet" onClick=${() => fork(turn)} title="A new conversation with everything up to here">Branch</button>
          </div>`}
      </section>
      <div class=${`answers ${sides.length > 1 ? "two" : ""}`}>
        ${sides.map((side) => {
          const shown = shownAnswer(turn, side);
          return shown && html`<${Answer} key=${shown.id} answer=${shown} turn=${turn} answering=${answering} again=${again} ask=${ask} change=${change} store=${store} conversation=${conversation} scroll=${scroll} askKey=${askKey} />`;
        })}
      </div>
    </article>`;
}

function EditForm({ text, done, close }) {
  const [value, set] = useState(text);
  const field = useRef();
  useLayoutEffect(() => { // before anybody can select something in it
    field.current.focus();
    field.current.setSelectionRange(value.length, value.length);
  }, []);
  const submit = (event) => {
    event.preventDefault();
    if (value.trim()) done(value);
  };
  const hear = (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  };
  return html`
    <form class="edit" onSubmit=${submit}>
      <textarea ref=${field} dir="auto" aria-label="Message" rows=${Math.min(12, value.split("\n").length + 1)} value=${value} onInput=${(event) => set(event.target.value)} onKeyDown=${hear}></textarea>
      <div class="buttons"><span class="soft small">What follows is kept beside it.</span><span class="gap"></span><button type="button" class="quiet" onClick=${close}>Cancel</button><button type="submit" class="main">Send</button></div>
    </form>`;
}

// ‹ 2 / 3 ›, where there are several.
function Steps({ list, current, pick, what }) {
  if (list.length < 2) return null;
  const at = list.findIndex(({ id }) => id === current.id);
  const step = (to, icon, words) => html`<button type="button" class="icon small" aria-label=${`${words} ${what}`} disabled=${!list[to]} onClick=${() => pick(list[to])}><${Icon} name=${icon} /></button>`;
  return html`<span class="steps">${step(at - 1, "left", "Previous")}<span>${at + 1} / ${list.length}</span>${step(at + 1, "right", "Next")}</span>`;
}

function Answer({ answer, turn, answering, again, ask, change, store, conversation, scroll, askKey }) {
  const [, redraw] = useReducer((n) => n + 1, 0);
  useEffect(() => answering.listen(answer.id, redraw), [answer.id]);
  const state = answering.stateOf(answer.id);
  const list = variants(turn, answer.side);
  const pick = (one) => {
    turn.picked[answer.side] = one.id;
    store.save(conversation);
    change();
  };
  return html`
    <section class=${`answer ${state ? "is-running" : ""}`} aria-label=${`Answer of ${visible(answer.model)}`} aria-busy=${Boolean(state)}>
      <div class="who"><bdi>${visible(answer.model) || "model"}</bdi>${state && html`<${Waiting} run=${answering.running.get(answer.id)} />`}</div>
      ${answer.thoughts && html`<${Thoughts} answer=${answer} isRunning=${state && !answer.text} />`}
      ${answer.text && html`<${Text} text=${answer.text} isDone=${!state} />`}
      ${answer.calls.map((call) => html`<${ToolCall} call=${call} />`)}
      ${answer.error && html`<p class="note bad" role="alert">${visible(answer.error)}</p>`}
      ${!state && answer.finish === "length" && html`<p class="soft small">Cut at the limit of tokens.</p>`}
      ${!state && answer.finish === "stopped" && html`<p class="soft small">Stopped.</p>`}
      ${!state && answer.calls.length > 0 && turn.id === path(conversation).at(-1)?.id && html`<${Results} calls=${answer.calls} send=${(results) => ask({ results }, turn.id)} />`}
      <div class="actions">
        ${!state && html`
          <${Steps} list=${list} current=${answer} pick=${pick} what="answer" />
          <${CopyButton} text=${() => answer.text} />
          <button type="button" class="quiet" onClick=${() => again(turn, answer.side)}>${answer.error ? "Try again" : "Regenerate"}</button>`}
        <${Figures} figures=${answer.figures} />
      </div>
    </section>`;
}

function Text({ text, isDone }) {
  const [, redraw] = useReducer((n) => n + 1, 0);
  useEffect(() => {
    if (!drawing.Markdown) loadDrawing().then(redraw);
  }, []);
  return drawing.Markdown ? html`<${drawing.Markdown} text=${text} isDone=${isDone} />` : html`<p class="plain" dir="auto">${visible(text.slice(0, AT_FIRST))}</p>`;
}

function Waiting({ run }) {
  const words = { sending: "", reading: "reading…", writing: "", loading: "waits for the model to load…", waiting: "waits for the server…" }[run.state];
  return html`<span class="waiting"><i aria-hidden="true"></i>${words}</span>`;
}

function Thoughts({ answer, isRunning }) {
  return html`<details class="fold"><summary>${isRunning ? "Thinking…" : "Thoughts"}</summary><${Text} text=${answer.thoughts} isDone=${!isRunning} /></details>`;
}

function ToolCall({ call }) {
  return html`<details class="fold"><summary>Calls <code>${visible(call.name)}</code></summary><pre tabindex="0">${visible(pretty(call.arguments))}</pre></details>`;
}

// The person is the tool: what its calls give is written down and sent.
function Results({ calls, send }) {
  const [values, set] = useState(() => calls.map(() => ""));
  const submit = (event) => {
    event.preventDefault();
    send(calls.map(({ id, name }, i) => ({ id, name, content: values[i] })));
  };
  return html`
    <form class="results" onSubmit=${submit}>
      ${calls.map(({ name }, i) => html`<label class="field"><span>Result of <code>${visible(name)}</code></span><textarea rows="2" value=${values[i]} onInput=${(event) => set(values.map((value, j) => (j === i ? event.target.value : value)))}></textarea></label>`)}
      <div class="buttons"><button type="submit" class="main">Send the results</button></div>
    </form>`;
}

function pretty(text) {
  if (text.length > 100_000) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function Figures({ figures: { perSecond, ttft, tokens, ms, prompt, cached } }) {
  const said = [
    perSecond && [`${perSecond.toFixed(perSecond < 100 ? 1 : 0)} tokens/s`, "Speed of the answer"],
    ttft !== undefined && [`first token ${seconds(ttft)}`, "Time from sending to the first token"],
    tokens && [`${tokens} tokens`, "Length of the answer"],
    ms && [seconds(ms), "Time in all"],
    prompt && [`prompt ${prompt}${cached ? `, ${cached} cached` : ""}`, "Tokens of the prompt, and of them those that the server had computed before"],
  ].filter(Boolean);
  return said.length > 0 && html`<span class="figures">${said.map(([words, title]) => html`<span title=${title}>${words}</span>`)}</span>`;
}
