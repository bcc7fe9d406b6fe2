// The page: what it knows of the server, which conversation and which tab are shown.

import { html, render, useCallback, useEffect, useMemo, useReducer, useRef, useState } from "./vendor/htm-preact.mjs";
import { Answering } from "./answering.mjs";
import { base, headers, health, key, models } from "./api.mjs";
import { Chat } from "./chat.mjs";
import { Dialog, Icon } from "./parts.mjs";
import { Sidebar } from "./sidebar.mjs";
import { Store } from "./store.mjs";
import { newConversation } from "./tree.mjs";
import { bytes, visible } from "./text.mjs";

const POLL_MS = 15_000;
const HURRY_MS = 1500;
const hasLive = document.querySelector("meta[name=live]").content === "yes";
const place = new URL(base).pathname || "/";
const store = new Store(place);
const answering = new Answering(store);
const TABS = [["chat", "Chat"], ["services", "Services"], ...(hasLive ? [["live", "Live"]] : [])];

addEventListener("storage", (event) => store.hear(event));

// What is shown, as the address has it: #/chat/ID, #/services, #/live.
function shownBy(hash) {
  const [, tab = "chat", id = ""] = hash.split("/");
  return { tab: TABS.some(([name]) => name === tab) ? tab : "chat", id };
}

function useServer(onKey) {
  const [server, set] = useState({ models: null, health: null, error: null });
  const timer = useRef();
  const look = useCallback(async () => {
    clearTimeout(timer.current);
    const [said, list] = await Promise.all([health(), models().catch((error) => error)]);
    const found = Array.isArray(list) ? list : [];
    if (list.status === 401) onKey();
    const error = Array.isArray(list) || list.status === 404 || list.status === 501 ? null : list;
    set({ models: found, health: said, error });
    const isBusy = !said.isReady || found.some(({ status }) => status === "loading" || status === "downloading");
    timer.current = setTimeout(look, isBusy ? HURRY_MS : POLL_MS);
  }, []);
  useEffect(() => {
    look();
    return () => clearTimeout(timer.current);
  }, []);
  return [server, look];
}

function App() {
  const [, redraw] = useReducer((n) => n + 1, 0);
  const [shown, show] = useState(() => shownBy(location.hash));
  const [draft, setDraft] = useState(newConversation);
  const [asksKey, askKey] = useState(false);
  const [isOpen, open] = useState(false); // the list of conversations, on a phone
  const [said, announce] = useState("");
  const [server, look] = useServer(() => askKey(true));

  useEffect(() => {
    store.listeners.add(redraw);
    const hear = () => show(shownBy(location.hash));
    const watch = (event) => {
      if (event.needsKey) askKey(true);
      if (event.began) announce("The model answers.");
      if (event.ended) announce(event.ended.error ? `The answer failed: ${event.ended.error}` : "The answer is complete.");
      redraw();
    };
    addEventListener("hashchange", hear);
    answering.watchers.add(watch);
    return () => {
      store.listeners.delete(redraw);
      removeEventListener("hashchange", hear);
      answering.watchers.delete(watch);
    };
  }, []);

  const first = server.models?.[0]?.id ?? "";
  // At once, and in the draft itself: a copy that replaces it later would lose what is chosen meanwhile.
  if (first && !draft.models[0]) draft.models = [remembered(server.models) ?? first, ""];
  const conversation = store.get(shown.id) ?? draft;

  const begin = useCallback(() => {
    setDraft({ ...newConversation([draft.models[0], ""]) });
    location.hash = "#/chat/";
    open(false);
    setTimeout(() => document.getElementById("message")?.focus());
  }, [draft]);
  const choose = useCallback((id) => {
    location.hash = `#/chat/${id}`;
    open(false);
  }, []);
  useShortcuts(begin);

  const keep = useCallback((one) => {
    store.save(one);
    if (shownBy(location.hash).id !== one.id) {
      history.replaceState(null, "", `#/chat/${one.id}`);
      show(shownBy(location.hash));
    }
    rememberModel(one.models[0]);
  }, []);

  return html`
    <header class="bar">
      ${shown.tab === "chat" && html`<a class="skip" href="#message" onClick=${skip}>Skip to the message field</a>`}
      ${shown.tab === "chat" && html`<button type="button" class="icon only-phone" aria-label="Conversations" aria-expanded=${isOpen} onClick=${() => open(!isOpen)}><${Icon} name="list" /></button>`}
      <a class="brand" href="#/chat/"><img src=${new URL("./icon.svg", import.meta.url).href} alt="" width="24" height="24" /><span>corosrv</span></a>
      <nav class="tabs" aria-label="Views">
        ${TABS.map(([name, words]) => html`<a href=${`#/${name}${name === "chat" && shown.id ? `/${shown.id}` : ""}`} aria-current=${shown.tab === name ? "page" : undefined}>${words}</a>`)}
        <a href="docs" class="away">API</a>
      </nav>
      <span class="gap"></span>
      <${State} server=${server} />
      <button type="button" class="icon" aria-label=${key.value ? "Change the API key" : "Enter an API key"} title="API key" onClick=${() => askKey(true)}><${Icon} name="key" /></button>
      <${Theme} />
    </header>
    ${shown.tab === "chat" && html`
      <div class=${`columns ${isOpen ? "is-open" : ""}`}>
        <${Sidebar} store=${store} answering=${answering} current=${conversation.id} begin=${begin} choose=${choose} close=${() => open(false)} />
        <${Chat} key=${conversation.id} conversation=${conversation} keep=${keep} store=${store} answering=${answering} server=${server} look=${look} choose=${choose} askKey=${() => askKey(true)} />
      </div>`}
    ${shown.tab === "services" && html`<${Loaded} file="./services.mjs" server=${server} />`}
    ${shown.tab === "live" && html`<${Live} />`}
    ${asksKey && html`<${KeyDialog} close=${() => askKey(false)} done=${() => { askKey(false); look(); }} />`}
    <p class="hidden" role="status">${said}</p>`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("message")?.focus();
}

const MODEL = `corosrv.model.${place}`;
function rememberModel(id) {
  try {
    localStorage.setItem(MODEL, id);
  } catch {
    // It is asked for again.
  }
}

function remembered(list) {
  try {
    const id = localStorage.getItem(MODEL);
    return list.some((model) => model.id === id) ? id : null;
  } catch {
    return null;
  }
}

function useShortcuts(begin) {
  useEffect(() => {
    const hear = (event) => {
      const isTyping = event.target.matches?.("input, textarea, select, [contenteditable]");
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") return focus(event, "search");
      if (event.altKey && !event.ctrlKey && event.code === "KeyN") {
        event.preventDefault();
        return begin();
      }
      if (event.key === "Escape" && answering.running.size && !document.querySelector("dialog[open]")) return answering.stop();
      if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) focus(event, "message");
    };
    const focus = (event, id) => {
      event.preventDefault();
      document.getElementById(id)?.focus();
    };
    addEventListener("keydown", hear);
    return () => removeEventListener("keydown", hear);
  }, [begin]);
}

// Whether the server takes requests, in a word.
function State({ server: { models: list, health: said } }) {
  if (!said) return null;
  const coming = list?.find(({ status }) => status === "loading" || status === "downloading");
  const words = coming ? (coming.status === "downloading" ? downloaded(coming) : "loading") : said.state;
  const kind = coming || said.state === "starting" ? "wait" : said.isReady ? "good" : "bad";
  return html`<span class=${`state ${kind}`} title=${said.message || "The state of the server"}><i aria-hidden="true"></i>${words}</span>`;
}

function downloaded({ progress }) {
  return progress?.total ? `downloading, ${Math.floor((100 * progress.bytes) / progress.total)} % of ${bytes(progress.total)}` : "downloading";
}

const THEMES = ["", "light", "dark"];
function Theme() {
  const [theme, set] = useState(document.documentElement.dataset.theme ?? "");
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  const change = () => {
    if (next) document.documentElement.dataset.theme = next;
    else delete document.documentElement.dataset.theme;
    try {
      if (next) localStorage.setItem("corosrv.theme", next);
      else localStorage.removeItem("corosrv.theme");
    } catch {
      // It lasts as long as the page.
    }
    set(next);
  };
  const words = { "": "as the system", light: "light", dark: "dark" }[theme];
  return html`<button type="button" class="icon" aria-label=${`Theme: ${words}. Change it`} title=${`Theme: ${words}`} onClick=${change}><${Icon} name=${theme || "auto"} /></button>`;
}

function KeyDialog({ close, done }) {
  const [value, set] = useState(key.value);
  const submit = (event) => {
    event.preventDefault();
    key.set(value);
    done();
  };
  return html`
    <${Dialog} title="API key" close=${close}>
      <form onSubmit=${submit}>
        <p class="soft">If this server asks for a key, enter it here. It is kept in this tab only, and forgotten when the tab is closed.</p>
        <label class="field"><span>Key</span><input id="key" type="password" autocomplete="off" spellcheck="false" value=${value} onInput=${(event) => set(event.target.value)} /></label>
        <div class="buttons">
          ${key.value && html`<button type="button" class="quiet" onClick=${() => { key.set(""); done(); }}>Forget it</button>`}
          <span class="gap"></span><button type="button" class="quiet" onClick=${close}>Cancel</button><button type="submit" class="main">Use this key</button>
        </div>
      </form>
    <//>`;
}

// A view that is loaded when it is looked at first.
function Loaded({ file, ...props }) {
  const [View, set] = useState(null);
  const [error, fail] = useState(null);
  useEffect(() => {
    import(file).then((module) => set(() => module.default), fail);
  }, [file]);
  if (error) return html`<main class="view"><p class="note bad">This part of the page cannot be loaded: ${visible(error.message)}. Load the page again.</p></main>`;
  return View ? html`<${View} ...${props} />` : html`<main class="view" aria-busy="true"></main>`;
}

function Live() {
  const element = useRef();
  const [error, fail] = useState(null);
  useEffect(() => {
    let unmount = null;
    let isGone = false;
    import("./live.mjs").then(({ mount }) => {
      if (!isGone) unmount = mount(element.current, { base, headers: headers() });
    }).catch(fail);
    return () => {
      isGone = true;
      unmount?.();
    };
  }, []);
  return html`<main class="view wide-view"><h1 class="hidden">The server at work</h1>${error && html`<p class="note bad">The live picture cannot be shown: ${visible(error.message)}</p>`}<div ref=${element}></div></main>`;
}

const app = document.getElementById("app");
app.replaceChildren();
render(html`<${App} />`, app);
