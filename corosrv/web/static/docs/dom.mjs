// Elements, made in one call: element("p", { class: "note" }, "words", child).

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== undefined && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

// Words in which `backticks` mark code; anything else stays text, so nothing in a document can become markup.
export function prose(words) {
  const pieces = words.split("`").map((piece, i) => (i % 2 ? element("code", {}, piece) : piece));
  return element("p", { class: "prose" }, ...pieces);
}

export function copyButton(text) {
  const button = element("button", { type: "button", class: "quiet", onclick: copy }, "Copy");
  async function copy() {
    await navigator.clipboard.writeText(text());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }
  return button;
}
