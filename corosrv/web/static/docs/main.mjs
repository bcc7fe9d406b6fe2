// Reads openapi.json and draws it; search, key and the list of contents.

import { element, prose } from "./dom.mjs";
import { badge, draw, operationsOf, wordsOf } from "./operation.mjs";
import { Schemas } from "./schema.mjs";

const KEY = "corosrv-key";
const place = (id) => document.getElementById(id);
const [main, contents, search, keyField] = ["main", "contents", "search", "key"].map(place);
const key = () => keyField.value.trim();
// Beside the page, wherever it is mounted.
const source = new URL("openapi.json", location.href.split(/[?#]/)[0]);

keyField.value = sessionStorage.getItem(KEY) ?? "";
place("keys").addEventListener("submit", (event) => event.preventDefault());
keyField.addEventListener("change", () => {
  sessionStorage.setItem(KEY, key());
  if (!main.querySelector(".operation")) read();
});
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input, textarea");
  if (event.key === "/" && !isTyping) {
    event.preventDefault();
    search.focus();
  }
});
read();

async function read() {
  try {
    const answer = await fetch(source, { headers: key() ? { Authorization: `Bearer ${key()}` } : {} });
    if (answer.status === 401) return say("This server asks for a key: enter it above, and the document appears.");
    if (!answer.ok) return say(`The document cannot be read: the server answers ${answer.status}.`);
    show(await answer.json());
  } catch (error) {
    say(`The document cannot be read: ${error.message}`);
  }
}

function say(words) {
  main.replaceChildren(element("p", { class: "note" }, words));
}

function show(api) {
  const schemas = new Schemas(api.components.schemas);
  const operations = operationsOf(api);
  place("title").textContent = api.info.title;
  place("version").textContent = api.info.version;
  document.title = `${api.info.title} API`;
  const shown = operations.map((operation) => ({
    operation,
    words: wordsOf(operation, schemas),
    card: draw(operation, api.servers[0].url, schemas, key),
    link: element("a", { href: `#${operation.id}` }, badge(operation.method), element("span", {}, operation.summary), element("code", {}, operation.path)),
  }));
  const groups = api.tags.map((tag) => group(tag, shown.filter(({ operation }) => operation.tag === tag.name)));
  const nothing = element("p", { class: "note", hidden: true }, "Nothing has these words.");
  const intro = element("section", { class: "intro" }, prose(api.info.description));
  main.replaceChildren(intro, nothing, ...groups.map(({ section }) => section));
  contents.replaceChildren(...groups.map(({ list }) => list));
  search.addEventListener("input", () => filter(shown, groups, intro, nothing));
  filter(shown, groups, intro, nothing);
  follow(shown);
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

function group(tag, shown) {
  const heading = element("h2", {}, tag.name);
  return {
    shown,
    section: element("section", { class: "group" }, heading, tag.description && element("p", { class: "about" }, tag.description), ...shown.map(({ card }) => card)),
    list: element("div", { class: "group" }, element("h2", {}, tag.name), ...shown.map(({ link }) => link)),
  };
}

function filter(shown, groups, intro, nothing) {
  const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const one of shown) {
    const isHit = wanted.every((word) => one.words.includes(word));
    one.card.hidden = one.link.hidden = !isHit;
    for (const field of one.card.querySelectorAll("[data-field]")) {
      field.classList.toggle("hit", wanted.some((word) => word.length > 2 && field.dataset.field.includes(word)));
    }
  }
  for (const { shown: within, section, list } of groups) section.hidden = list.hidden = within.every(({ card }) => card.hidden);
  intro.hidden = wanted.length > 0;
  nothing.hidden = shown.some(({ card }) => !card.hidden);
}

// Marks in the contents what is being read.
function follow(shown) {
  const links = new Map(shown.map(({ card, link }) => [card, link]));
  const watch = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) links.get(target).classList.toggle("current", isIntersecting);
  }, { rootMargin: "-15% 0px -70% 0px" });
  for (const card of links.keys()) watch.observe(card);
}
