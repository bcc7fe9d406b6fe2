// The conversations that this browser keeps: begun, found, chosen, deleted, written to a file and read from one.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.mjs";
import { Icon } from "./parts.mjs";
import { MOST_IMPORT_BYTES } from "./store.mjs";
import { oneLine, visible, when } from "./text.mjs";

const SHOWN = 200;

export function Sidebar({ store, answering, current, begin, choose, close }) {
  const [words, search] = useState("");
  const [note, tell] = useState("");
  const [shown, more] = useState(SHOWN);
  const list = store.list(words);
  return html`
    <div class="shade" onClick=${close}></div>
    <aside class="side" aria-label="Conversations">
      <button type="button" class="new" onClick=${begin} title="Alt+N"><${Icon} name="plus" />New chat</button>
      <input id="search" type="search" placeholder="Search conversations" aria-label="Search conversations" autocomplete="off" value=${words} onInput=${(event) => search(event.target.value)} />
      <ul class="chats">
        ${list.slice(0, shown).map((one) => html`<${Entry} key=${one.id} one=${one} isCurrent=${one.id === current} isBusy=${isBusy(answering, one)} choose=${choose} store=${store} answering=${answering} begin=${begin} />`)}
      </ul>
      ${list.length > shown && html`<button type="button" class="quiet" onClick=${() => more(shown + SHOWN)}>Show more</button>`}
      ${list.length === 0 && html`<p class="soft small">${words ? "No conversation has these words." : "Conversations are kept in this browser, and nowhere else."}</p>`}
      <${Files} store=${store} tell=${tell} />
      ${note && html`<p class="small note" role="status">${note}</p>`}
    </aside>`;
}

function isBusy(answering, one) {
  return answering.running.size > 0 && Object.values(one.turns).some((turn) => turn.answers.some(({ id }) => answering.running.has(id)));
}

function Entry({ one, isCurrent, isBusy: busy, choose, store, answering, begin }) {
  const [isSure, sure] = useState(false);
  const title = oneLine(one.title, 80) || "Untitled";
  useEffect(() => {
    if (!isSure) return undefined;
    const timer = setTimeout(() => sure(false), 4000);
    return () => clearTimeout(timer);
  }, [isSure]);
  const remove = () => {
    if (!isSure) return sure(true);
    answering.stop(Object.values(one.turns).flatMap((turn) => turn.answers.map(({ id }) => id)));
    store.remove(one.id);
    if (isCurrent) begin();
  };
  return html`
    <li class=${isCurrent ? "current" : ""}>
      <button type="button" class="open" aria-current=${isCurrent ? "true" : undefined} onClick=${() => choose(one.id)}>
        <span class="title" dir="auto">${title}</span><span class="soft small">${busy ? "answering…" : when(one.at)}</span>
      </button>
      <button type="button" class=${`icon remove ${isSure ? "sure" : ""}`} aria-label=${isSure ? `Really delete ${title}` : `Delete ${title}`} onClick=${remove}>${isSure ? "Delete?" : html`<${Icon} name="bin" />`}</button>
    </li>`;
}

function Files({ store, tell }) {
  const field = useRef();
  const write = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([store.exported()], { type: "application/json" }));
    link.download = `corosrv-chats-${new Date().toISOString().slice(0, 10)}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };
  const read = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (!file) return;
    try {
      if (file.size > MOST_IMPORT_BYTES) throw new Error("the file is larger than 50 MB");
      const n = store.imported(await file.text());
      tell(`${n} ${n === 1 ? "conversation was" : "conversations were"} imported.`);
    } catch (error) {
      tell(`Nothing was imported: ${visible(error.message)}`);
    }
  };
  return html`
    <div class="files">
      <button type="button" class="quiet" onClick=${() => field.current.click()}>Import</button>
      <button type="button" class="quiet" onClick=${write} disabled=${store.kept.size === 0}>Export all</button>
      <input id="import" ref=${field} type="file" accept=".json,application/json" hidden onChange=${read} aria-label="File of conversations" />
    </div>`;
}
