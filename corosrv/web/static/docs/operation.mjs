// One operation of the document: what it takes, what it answers, and a way to try it.

import { element, prose } from "./dom.mjs";
import { tryout } from "./tryout.mjs";

// Operations in the document's order, other names of a path folded into the path.
export function operationsOf(document) {
  const all = Object.entries(document.paths).flatMap(([path, verbs]) =>
    Object.entries(verbs).map(([verb, said]) => ({ path, verb, said })));
  return all.filter(({ said }) => !said["x-alias-of"]).map(({ path, verb, said }) => ({
    id: said.operationId,
    path,
    method: verb.toUpperCase(),
    tag: said.tags[0],
    summary: said.summary,
    text: said.description ?? "",
    parameters: said.parameters ?? [],
    body: said.requestBody?.content["application/json"]?.schema,
    examples: Object.entries(said.requestBody?.content["application/json"]?.examples ?? {}).map(([title, one]) => [title, one.value]),
    responses: Object.entries(said.responses),
    isOpen: said.security?.length === 0 && document.security.length > 0,
    others: all.filter((one) => one.verb === verb && one.said["x-alias-of"] === path).map((one) => one.path),
  }));
}

// Everything that a search looks at, in small letters.
export function wordsOf(operation, schemas) {
  const fields = operation.body ? Object.keys(schemas.resolve(operation.body).properties ?? {}) : [];
  return [operation.method, operation.path, operation.summary, operation.text, operation.tag, ...operation.others, ...fields].join(" ").toLowerCase();
}

export function draw(operation, server, schemas, key) {
  return element(
    "article",
    { id: operation.id, class: "operation" },
    element("h3", {}, element("a", { href: `#${operation.id}` }, operation.summary)),
    element("div", { class: "path" }, badge(operation.method), element("code", {}, operation.path), operation.isOpen && element("span", { class: "limits" }, "no key needed")),
    operation.others.length > 0 && element("p", { class: "others" }, "also ", ...operation.others.flatMap((path, i) => [i ? ", " : "", element("code", {}, path)])),
    operation.text && prose(operation.text),
    element(
      "div",
      { class: "columns" },
      element("div", { class: "reference" }, parameters(operation, schemas), body(operation, schemas), answers(operation, schemas)),
      element("div", { class: "try" }, element("h4", {}, "Try it"), tryout(operation, server, schemas, key))));
}

export function badge(method) {
  return element("span", { class: `badge ${method.toLowerCase()}` }, method);
}

function parameters(operation, schemas) {
  if (!operation.parameters.length) return null;
  const list = operation.parameters.map((one) => schemas.field(one.name, { ...one.schema, description: one.description }, one.required, []));
  return element("section", {}, element("h4", {}, "Parameters"), element("ul", { class: "fields" }, ...list));
}

function body(operation, schemas) {
  if (!operation.body) return null;
  const fields = schemas.fields(operation.body);
  const section = element("section", {}, element("h4", {}, "Body", element("span", { class: "type" }, schemas.words(operation.body))), fields);
  const nShown = 8;
  const rest = [...fields.children].slice(nShown);
  if (rest.length > 3) {
    for (const item of rest) item.classList.add("more");
    const button = element("button", { type: "button", class: "quiet", onclick: () => { fields.classList.add("all"); button.remove(); } }, `Show ${rest.length} more fields`);
    section.append(button);
  }
  return section;
}

function answers(operation, schemas) {
  const good = operation.responses.filter(([status]) => status < "300");
  const bad = operation.responses.filter(([status]) => status >= "300");
  return element("section", {}, element("h4", {}, "Answers"), ...good.map(([status, one]) => answer(status, one, schemas)), refusals(bad, schemas));
}

function answer(status, response, schemas) {
  const kinds = Object.entries(response.content ?? {}).map(([type, { schema }]) => {
    const data = schema.properties?.data;
    const event = (data?.anyOf?.[0] ?? data)?.contentSchema?.anyOf[0];
    const shown = event ?? schema;
    const words = event ? `each event ${schemas.words(shown)}` : schemas.words(shown);
    return element("li", {}, element("div", { class: "field" }, element("span", { class: "status good" }, status), element("code", {}, type), element("span", { class: "type" }, words)),
      ...schemas.inner(shown).map((name) => schemas.unfold(name, [])));
  });
  return element("ul", { class: "fields" }, ...kinds);
}

function refusals(responses, schemas) {
  if (!responses.length) return null;
  const shape = Object.values(responses[0][1].content)[0].schema;
  const lines = responses.map(([status, one]) =>
    element("li", {}, element("div", { class: "field" }, element("span", { class: "status bad" }, status), element("span", { class: "limits" }, one.description))));
  return element("details", { class: "inner refusals" }, element("summary", {}, "Refusals and failures"),
    element("ul", { class: "fields" }, ...lines), ...schemas.inner(shape).map((name) => schemas.unfold(name, [])));
}
