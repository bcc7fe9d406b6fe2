// Markdown to elements. A model's text is hostile: HTML in it stays text, and whatever is drawn went through DOMPurify.
//
// A text that grows is cut into blocks as it arrives. Blocks that are complete are drawn once; only the last one is drawn again.

import { html, useEffect, useLayoutEffect, useRef } from "./vendor/htm-preact.mjs";
import MarkdownIt from "./vendor/markdown-it.mjs";
import { copy } from "./parts.mjs";
import { visible } from "./text.mjs";

await loadScript("./vendor/purify.js");

const TAGS = "p br hr strong em s code pre blockquote ul ol li table thead tbody tr th td h1 h2 h3 h4 h5 h6 a span div".split(" ");
const CLASSES = /^(language-[\w+#.-]{1,30}|formula|block|left|center|right)$/;
const LINK = /^(https?:|mailto:)/i;
const MOST_FORMULA = 4000; // characters: longer ones stay text
const MOST_COLOURED = 30_000;
const MOST_ITEMS = 24; // of a list that grows, before it is cut
const SLICE_MS = 8;
const NEAR_END = 3; // blocks, which are laid out also while they are out of sight
const PART = 4000; // characters that are parsed at once, if they hold a block

const purify = () => window.DOMPurify;
const md = new MarkdownIt({ html: false, linkify: true, breaks: true, highlight: null, maxNesting: 40 });
md.validateLink = (url) => LINK.test(url.trim());
md.renderer.rules.fence = (tokens, i) => code(tokens[i].content, tokens[i].info.trim().split(/\s+/)[0]);
md.renderer.rules.code_block = (tokens, i) => code(tokens[i].content, "");
// Pictures are not fetched: their address could carry what was said to somebody else.
md.renderer.rules.image = (tokens, i) => {
  const [words, url] = [tokens[i].content || "picture", tokens[i].attrGet("src") ?? ""];
  return LINK.test(url) ? `<a href="${escaped(url)}">${escaped(words)}</a>` : escaped(words);
};
for (const cell of ["th_open", "td_open"]) {
  md.renderer.rules[cell] = (tokens, i, options, env, self) => {
    const side = /text-align:(left|center|right)/.exec(tokens[i].attrGet("style") ?? "")?.[1];
    tokens[i].attrs = side ? [["class", side]] : null;
    return self.renderToken(tokens, i, options);
  };
}
md.renderer.rules.formula = (tokens, i) => `<span class="formula">${escaped(tokens[i].content)}</span>`;
md.renderer.rules.formula_block = (tokens, i) => `<${tokens[i].tag} class="formula block">${escaped(tokens[i].content)}</${tokens[i].tag}>`;
md.inline.ruler.before("escape", "formula", inlineFormula);
md.block.ruler.before("fence", "formula_block", blockFormula, { alt: ["paragraph", "blockquote", "list"] });

function escaped(text) {
  return md.utils.escapeHtml(text);
}

function code(text, language) {
  const name = /^[\w+#.-]{1,30}$/.test(language) ? ` class="language-${language}"` : "";
  return `<pre><code${name}>${escaped(text)}</code></pre>`;
}

// $x$ as in TeX, where no digit follows and no space is inside the dollars; \(x\), \[x\] and $$x$$.
function inlineFormula(state, silent) {
  const rest = state.src.slice(state.pos, state.pos + MOST_FORMULA);
  const found = /^\$\$([^$]+)\$\$/.exec(rest) ?? /^\\\((.+?)\\\)/s.exec(rest) ?? /^\\\[(.+?)\\\]/s.exec(rest) ?? /^\$(?![\s$])((?:[^$\\\n]|\\.)*?[^\s$\\])\$(?!\d)/.exec(rest);
  if (!found) return false;
  const isBlock = rest.startsWith("$$") || rest.startsWith("\\[");
  if (!silent) state.push(isBlock ? "formula_block" : "formula", "span", 0).content = found[1].trim();
  state.pos += found[0].length;
  return true;
}

function blockFormula(state, start, end, silent) {
  const line = (n) => state.src.slice(state.bMarks[n] + state.tShift[n], state.eMarks[n]).trim();
  const first = line(start);
  const close = first === "$$" ? "$$" : first === "\\[" ? "\\]" : null;
  if (!close) return false;
  let last = start + 1;
  while (last < end && line(last) !== close) last += 1;
  if (last >= end || state.bMarks[last] - state.bMarks[start] > MOST_FORMULA) return false;
  if (silent) return true;
  const token = state.push("formula_block", "div", 0);
  token.content = state.getLines(start + 1, last, state.blkIndent, false).trim();
  token.map = [start, last + 1];
  state.line = last + 1;
  return true;
}

// Elements out of HTML that was made here from a hostile text.
export function cleaned(made) {
  const clean = purify().sanitize(made, {
    ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ["href", "class", "start"], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, RETURN_DOM_FRAGMENT: true,
  });
  for (const element of clean.querySelectorAll("[class]")) {
    const names = [...element.classList].filter((name) => CLASSES.test(name));
    if (names.length) element.className = names.join(" ");
    else element.removeAttribute("class");
  }
  for (const link of clean.querySelectorAll("a")) {
    if (!LINK.test(link.getAttribute("href") ?? "")) link.removeAttribute("href");
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
    link.title = visible(link.getAttribute("href") ?? "");
  }
  for (const block of clean.querySelectorAll("p, li, h1, h2, h3, h4, h5, h6, td, th, blockquote")) block.dir = "auto";
  return clean;
}

// A code block with its language and a button that copies it; what would hide or reorder code is shown by its number.
function dress(pre) {
  const block = pre.firstElementChild;
  if (pre.parentElement?.classList.contains("code") || !block) return;
  const [original, language] = [block.textContent, /language-(\S+)/.exec(block.className)?.[1] ?? ""];
  const shown = visible(original);
  if (shown !== original) block.textContent = shown;
  const frame = document.createElement("div");
  frame.className = "code";
  const head = document.createElement("div");
  head.className = "cap";
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "quiet", textContent: "Copy", onclick: () => copy(original, button) });
  head.append(Object.assign(document.createElement("span"), { textContent: language || "text" }), button);
  pre.replaceWith(frame);
  pre.tabIndex = 0;
  pre.setAttribute("role", "group");
  pre.setAttribute("aria-label", `Code, ${language || "text"}`);
  frame.append(head, pre);
}

let colours;
async function colour(block) {
  const language = /language-(\S+)/.exec(block.className)?.[1];
  if (!language || block.textContent.length > MOST_COLOURED) return;
  const { default: hljs } = await (colours ??= import("./vendor/highlight.mjs"));
  if (!hljs.getLanguage(language) || !block.isConnected) return;
  const made = hljs.highlight(block.textContent, { language, ignoreIllegals: true }).value;
  block.replaceChildren(purify().sanitize(made, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, RETURN_DOM_FRAGMENT: true }));
}

function loadScript(file) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    Object.assign(script, { src: new URL(file, import.meta.url).href, onload: resolve, onerror: reject });
    document.head.append(script);
  });
}

let formulas;
async function typeset(place) {
  await (formulas ??= loadScript("./vendor/temml.js"));
  const { temml } = window;
  const isBlock = place.classList.contains("block");
  const made = temml.renderToString(place.textContent, { displayMode: isBlock, throwOnError: false, trust: false, maxExpand: 300, maxSize: [20, 20] }).replace(/ style="[^"]*"/g, "");
  const clean = purify().sanitize(made, { USE_PROFILES: { mathMl: true }, FORBID_ATTR: ["style", "href", "id"], FORBID_TAGS: ["style"], RETURN_DOM_FRAGMENT: true });
  if (clean.querySelector("math") && place.isConnected) place.replaceChildren(clean);
}

// Work that can wait, in pieces that never hold the page for long.
const waiting = [];
let isWorking = false;
function later(work) {
  waiting.push(work);
  if (!isWorking) next();
}

async function next() {
  isWorking = true;
  while (waiting.length) {
    await new Promise((resolve) => (window.requestIdleCallback ?? setTimeout)(resolve, { timeout: 400 }));
    await Promise.resolve(waiting.shift()()).catch(() => {});
  }
  isWorking = false;
}

// Draws one text, which may grow, into an element.
export class View {
  constructor(place) {
    this.place = place;
    this.begin();
  }

  begin() {
    this.text = "";
    this.from = 0; // what is before it is drawn for good
    this.last = [];
    this.nFinished = this.nPast = 0; // elements
    this.place.replaceChildren();
  }

  show(text, isDone) {
    if (!text.startsWith(this.text)) this.begin();
    this.text = text;
    this.isDone = isDone;
    clearTimeout(this.timer);
    this.draw();
  }

  end() {
    clearTimeout(this.timer);
  }

  draw() {
    const began = performance.now();
    const { blocks, isCut } = this.blocks();
    this.last.forEach((node) => node.remove());
    this.last = [];
    const begin = this.from;
    for (const [i, { tokens, env, end }] of blocks.entries()) {
      const isLast = !isCut && i === blocks.length - 1;
      const nodes = [...cleaned(md.renderer.render(tokens, md.options, env)).childNodes];
      this.place.append(...nodes);
      if (isLast && !this.isDone) this.last = nodes;
      else this.finish(nodes);
      if (!isLast) {
        this.from = begin + end;
        if (performance.now() - began > SLICE_MS) return this.goOn();
      }
    }
    if (isCut) return this.goOn();
    if (this.isDone) this.from = this.text.length;
  }

  goOn() {
    this.timer = setTimeout(() => this.draw());
  }

  // The blocks that come next: of a long rest so many as are complete in its first part.
  blocks() {
    const rest = this.text.slice(this.from);
    for (let size = PART; size < rest.length; size *= 4) {
      const blocks = blocksOf(rest.slice(0, rest.lastIndexOf("\n", size) + 1));
      if (blocks.length > 1) return { blocks: blocks.slice(0, -1), isCut: true };
    }
    return { blocks: blocksOf(rest), isCut: false };
  }

  finish(nodes) {
    for (const node of nodes) {
      if (!(node instanceof Element)) continue;
      this.nFinished += 1;
      const found = (words) => [...(node.matches(words) ? [node] : []), ...node.querySelectorAll(words)];
      for (const place of found(".formula")) later(() => typeset(place));
      for (const table of found("table")) wrapTable(table);
      for (const pre of found("pre")) {
        dress(pre);
        later(() => colour(pre.firstElementChild));
      }
    }
    // A class, as a selector that counts from the end would have every block styled anew with each one that is added.
    for (; this.nFinished - this.nPast > NEAR_END; this.nPast += 1) {
      this.edge = this.nPast ? this.edge.nextElementSibling : this.place.firstElementChild;
      this.edge.classList.add("past");
    }
  }
}

function wrapTable(table) {
  const frame = document.createElement("div");
  Object.assign(frame, { className: "wide", tabIndex: 0 });
  frame.setAttribute("role", "group");
  frame.setAttribute("aria-label", "Table");
  table.replaceWith(frame);
  frame.append(table);
}

// The blocks of a text, each with where it ends. A long list is cut between its items, so that its end can be drawn alone.
function blocksOf(text) {
  const env = {};
  const tokens = md.parse(text, env);
  const ends = lineEnds(text);
  const blocks = [];
  let begun = [];
  for (const token of tokens) {
    begun.push(token);
    if (token.level !== 0 || token.nesting > 0) continue;
    blocks.push({ tokens: begun, env });
    begun = [];
  }
  const cut = blocks.flatMap(cutList);
  cut.forEach((block, i) => (block.end = i + 1 < cut.length ? ends(cut[i + 1].tokens.find(({ map }) => map).map[0]) : text.length));
  return cut;
}

function cutList(block) {
  const [open] = block.tokens;
  const close = block.tokens.at(-1);
  if (!open.type.endsWith("_list_open")) return [block];
  const starts = block.tokens.flatMap((token, i) => (token.type === "list_item_open" && token.level === 1 ? [i] : []));
  if (starts.length <= MOST_ITEMS) return [block];
  const pieces = [];
  for (let i = 0; i < starts.length; i += MOST_ITEMS) {
    const items = block.tokens.slice(starts[i], starts[i + MOST_ITEMS] ?? -1);
    const head = Object.assign(Object.create(Object.getPrototypeOf(open)), open, { map: items[0].map, attrs: open.type === "ordered_list_open" ? [["start", items[0].info || String(i + 1)]] : open.attrs });
    pieces.push({ tokens: [head, ...items, close], env: block.env });
  }
  return pieces;
}

function lineEnds(text) {
  const starts = [0];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) starts.push(at + 1);
  return (line) => starts[line] ?? text.length;
}

// `text` as Markdown; while it grows, it is drawn again at most as often as the price of drawing it allows.
export function Markdown({ text, isDone }) {
  const place = useRef();
  const held = useRef({});
  useLayoutEffect(() => {
    held.current.view = new View(place.current);
    return () => {
      clearTimeout(held.current.timer);
      held.current.view.end();
    };
  }, []);
  useEffect(() => {
    const state = held.current;
    state.latest = { text, isDone };
    const draw = () => {
      state.timer = null;
      const began = performance.now();
      state.view.show(state.latest.text, state.latest.isDone);
      state.pause = Math.max(120, 10 * (performance.now() - began));
    };
    if (isDone || state.timer === undefined) {
      clearTimeout(state.timer);
      draw();
    } else state.timer ??= setTimeout(draw, state.pause);
  }, [text, isDone]);
  return html`<div class="markdown" ref=${place}></div>`;
}
