// Small parts of the page: icons, dialogs, buttons that copy.

import { html, useEffect, useRef } from "./vendor/htm-preact.mjs";

const SHAPES = {
  list: "M4 6h16M4 12h16M4 18h16",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  key: "M15 7a4 4 0 1 0-3.5 5.9L13 14.5h2v2h2v2h3v-3l-5.3-5.3A4 4 0 0 0 15 7zM9 8h.01",
  auto: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6 19 19M19 5l-1.4 1.4M6.4 17.6 5 19",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z",
  close: "M6 6l12 12M18 6L6 18",
  image: "M4 5h16v14H4zM4 16l4.5-4.5 4 4 3-3L20 17M15.5 9h.01",
  settings: "M4 7h9M17 7h3M15 5v4M4 17h3M11 17h9M9 15v4",
  two: "M4 5h7v14H4zM13 5h7v14h-7z",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  bin: "M5 7h14M10 7V5h4v2M7 7l1 12h8l1-12",
};

export function Icon({ name }) {
  return html`<svg viewBox="0 0 24 24" width="18" height="18" aria-hidden="true" focusable="false"><path d=${SHAPES[name]} /></svg>`;
}

// A dialog that holds the focus, closes on Escape, and gives the focus back.
export function Dialog({ title, close, children, kind = "" }) {
  const place = useRef();
  useEffect(() => {
    const dialog = place.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  const outside = (event) => event.target === place.current && close();
  const cancel = (event) => {
    event.preventDefault();
    close();
  };
  return html`
    <dialog ref=${place} class=${kind} aria-label=${title} onCancel=${cancel} onMouseDown=${outside}>
      <header><h2>${title}</h2><button type="button" class="icon" aria-label="Close" onClick=${close}><${Icon} name="close" /></button></header>
      ${children}
    </dialog>`;
}

export async function copy(text, button) {
  let words = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    words = "Not allowed";
  }
  const before = button.dataset.words ?? (button.dataset.words = button.textContent);
  button.textContent = words;
  setTimeout(() => (button.textContent = before), 1500);
}

export function CopyButton({ text, label = "Copy" }) {
  return html`<button type="button" class="quiet" onClick=${(event) => copy(text(), event.currentTarget)}>${label}</button>`;
}
