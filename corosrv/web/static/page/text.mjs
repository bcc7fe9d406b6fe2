// Names and small texts from elsewhere: models, tools, titles, errors. What reorders or hides text is made visible.

const ODD = /[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]|[\u{e0000}-\u{e007f}]/gu;

// The text with each such character by its number; letters, joiners of emoji and marks of accents stay.
export function visible(text) {
  return String(text ?? "").replace(ODD, (odd) => `‹U+${odd.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);
}

// One line of at most so many characters, for titles.
export function oneLine(text, most = 60) {
  const line = visible(String(text ?? "").replace(/\s+/g, " ").trim());
  const letters = [...line];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : line;
}

export function seconds(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 60_000 ? `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s` : `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

export function bytes(n) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  for (; n >= 1000 && i < units.length - 1; i += 1) n /= 1000;
  return `${n < 10 && i ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

export function when(at) {
  const date = new Date(at);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) : date.toLocaleDateString([], { day: "numeric", month: "short" });
}
