// JSON schemas: in words, as a list of fields, and as an example.

import { element, prose } from "./dom.mjs";

export class Schemas {
  constructor(components) {
    this.components = components;
  }

  resolve(schema) {
    const name = nameOf(schema);
    return name ? this.components[name] : schema;
  }

  // Without the null that every field may have instead of being absent.
  bare(schema) {
    const kinds = schema.anyOf?.filter((kind) => kind.type !== "null");
    if (!kinds) return schema;
    return kinds.length === 1 ? { ...schema, anyOf: undefined, ...kinds[0] } : { ...schema, anyOf: kinds };
  }

  words(schema) {
    const kind = this.bare(schema);
    const name = nameOf(kind);
    if (name) return shown(name);
    if (kind.anyOf) return kind.anyOf.map((one) => this.words(one)).join(" or ");
    if (kind.enum) return kind.enum.map((value) => JSON.stringify(value)).join(" or ");
    if ("const" in kind) return JSON.stringify(kind.const);
    if (kind.type === "array") return this.listWords(kind);
    if (kind.type === "object" && typeof kind.additionalProperties === "object") {
      return `map to ${this.words(kind.additionalProperties)}`;
    }
    return kind.type ?? "anything";
  }

  listWords(schema) {
    if (schema.prefixItems) return `[${schema.prefixItems.map((one) => this.words(one)).join(", ")}]`;
    const items = schema.items ? this.words(schema.items) : "anything";
    return `list of ${items.includes(" or ") ? `(${items})` : items}`;
  }

  limits(schema) {
    const kind = this.bare(schema);
    const said = [];
    const least = kind.minimum ?? kind.exclusiveMinimum;
    const most = kind.maximum ?? kind.exclusiveMaximum;
    if (least !== undefined) said.push(`${kind.exclusiveMinimum === undefined ? "≥" : ">"} ${number(least)}`);
    if (most !== undefined) said.push(`${kind.exclusiveMaximum === undefined ? "≤" : "<"} ${number(most)}`);
    if (kind.minLength) said.push("not empty");
    if (kind.minItems) said.push(`at least ${kind.minItems}`);
    if (kind.maxItems) said.push(`at most ${kind.maxItems}`);
    const standard = schema.default;
    if (standard !== undefined && standard !== null) said.push(`default ${JSON.stringify(standard)}`);
    return said.join(", ");
  }

  // The schemas of objects within this one, by name: what a reader may want to unfold.
  inner(schema, found = []) {
    const kind = this.bare(schema);
    const name = nameOf(kind);
    if (name) {
      if (this.components[name].properties && !found.includes(name)) found.push(name);
      return found;
    }
    const parts = [...(kind.anyOf ?? []), ...(kind.prefixItems ?? []), kind.items, kind.additionalProperties];
    for (const part of parts) if (part && typeof part === "object") this.inner(part, found);
    return found;
  }

  fields(schema, above = []) {
    const kind = this.resolve(this.bare(schema));
    const required = new Set(kind.required ?? []);
    const fields = Object.entries(kind.properties ?? {});
    fields.sort(([a], [b]) => required.has(b) - required.has(a));
    return element("ul", { class: "fields" }, ...fields.map(([name, one]) => this.field(name, one, required.has(name), above)));
  }

  field(name, schema, isRequired, above) {
    const limits = this.limits(schema);
    const inner = this.inner(schema).filter((one) => !above.includes(one));
    return element(
      "li",
      { "data-field": name },
      element("div", { class: "field" },
        element("code", { class: "name" }, name),
        element("span", { class: "type" }, this.words(schema)),
        isRequired && element("span", { class: "required" }, "required"),
        limits && element("span", { class: "limits" }, limits)),
      schema.description && prose(schema.description),
      ...inner.map((one) => this.unfold(one, above)));
  }

  unfold(name, above) {
    const body = element("div", {});
    const folded = element("details", { class: "inner", ontoggle: draw }, element("summary", {}, shown(name)), body);
    const draw_ = () => {
      const kind = this.components[name];
      body.replaceChildren(kind.description ? prose(kind.description) : "", this.fields(kind, [...above, name]));
    };
    function draw() {
      if (folded.open && !body.childElementCount) draw_();
    }
    return folded;
  }

  example(schema, depth = 0) {
    const kind = this.resolve(this.bare(schema));
    if (kind.default !== undefined && kind.default !== null) return kind.default;
    if (kind.enum) return kind.enum[0];
    if ("const" in kind) return kind.const;
    if (kind.anyOf) return this.example(kind.anyOf[0], depth);
    if (kind.type === "array") return kind.items && depth < 6 ? [this.example(kind.items, depth + 1)] : [];
    if (kind.type === "object") return this.exampleObject(kind, depth);
    return { string: "text", integer: kind.minimum ?? 1, number: kind.minimum ?? 0.5, boolean: false }[kind.type] ?? null;
  }

  exampleObject(schema, depth) {
    const required = new Set(schema.required ?? []);
    const chosen = Object.entries(schema.properties ?? {}).filter(([name]) => required.has(name));
    return Object.fromEntries(chosen.map(([name, one]) => [name, depth < 6 ? this.example(one, depth + 1) : null]));
  }
}

function nameOf(schema) {
  return schema.$ref?.split("/").pop();
}

// Types of one name in two dialects carry the place that each is from, which says little to a reader.
function shown(name) {
  return name.split(".").pop();
}

function number(value) {
  if (value >= 2 ** 31 - 1) return `2^${Math.round(Math.log2(value + 1))} - 1`;
  return value <= -(2 ** 31) ? `-2^${Math.round(Math.log2(-value))}` : String(value);
}
