// A conversation as a tree of turns: pure functions, which know no page and no storage.
//
// A turn is what a person says (or the results of tools), with the answers to it: variants, on side 0 and, where two models
// stand side by side, on side 1. Editing makes a turn beside the edited one; `picked` says which of them is shown below which.

export const FORMAT = 1;
const OPTIONS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "max_tokens", "seed"];
const IMAGE = /^data:image\/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]+$/;
const MOST = { text: 2_000_000, name: 300, turns: 5000, images: 20, image: 12_000_000, answers: 100, calls: 200 };

export const newId = () => crypto.randomUUID?.() ?? [...crypto.getRandomValues(new Uint8Array(16))].map((n) => n.toString(16).padStart(2, "0")).join("");

export function newConversation(models = ["", ""]) {
  return { format: FORMAT, id: newId(), title: "", at: Date.now(), system: "", options: {}, stop: "", tools: "", models: [...models], turns: {}, picked: {} };
}

export function newTurn(parent, said) {
  return { id: newId(), parent, at: Date.now(), text: "", images: [], results: [], answers: [], picked: [null, null], ...said };
}

export function newAnswer(side, model) {
  return { id: newId(), side, model, at: Date.now(), text: "", thoughts: "", calls: [], error: "", finish: "", figures: {} };
}

export function siblings(conversation, parent) {
  return Object.values(conversation.turns).filter((turn) => turn.parent === parent).sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1));
}

// The turns that are shown, from the first on.
export function path(conversation) {
  const children = new Map();
  for (const turn of Object.values(conversation.turns)) {
    if (!children.has(turn.parent)) children.set(turn.parent, []);
    children.get(turn.parent).push(turn);
  }
  const shown = [];
  for (let parent = ""; children.has(parent) && shown.length <= MOST.turns; parent = shown.at(-1).id) {
    const below = children.get(parent).sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1));
    shown.push(below.find((turn) => turn.id === conversation.picked[parent]) ?? below.at(-1));
    children.delete(parent);
  }
  return shown;
}

export function add(conversation, turn) {
  conversation.turns[turn.id] = turn;
  conversation.picked[turn.parent] = turn.id;
  conversation.at = turn.at;
  return turn;
}

export function variants(turn, side) {
  return turn.answers.filter((answer) => answer.side === side);
}

export function shownAnswer(turn, side) {
  const found = variants(turn, side);
  return found.find((answer) => answer.id === turn.picked[side]) ?? found.at(-1) ?? null;
}

export function addAnswer(turn, answer) {
  turn.answers.push(answer);
  turn.picked[answer.side] = answer.id;
  return answer;
}

// What a model on this side is sent, up to a turn. A turn whose answer failed without a word is left out with its question.
export function messages(conversation, last, side) {
  const sent = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  for (const turn of path(conversation)) {
    const answer = shownAnswer(turn, side) ?? shownAnswer(turn, 0);
    const isLast = turn.id === last.id;
    if (!isLast && !(answer && (answer.text || answer.calls.length))) continue;
    sent.push(...questions(turn));
    if (isLast) return sent;
    sent.push(asMessage(answer));
  }
  return sent;
}

function questions(turn) {
  if (turn.results.length) return turn.results.map(({ id, content }) => ({ role: "tool", tool_call_id: id, content }));
  if (!turn.images.length) return [{ role: "user", content: turn.text }];
  const parts = turn.images.map((url) => ({ type: "image_url", image_url: { url } }));
  return [{ role: "user", content: turn.text ? [...parts, { type: "text", text: turn.text }] : parts }];
}

function asMessage(answer) {
  if (!answer.calls.length) return { role: "assistant", content: answer.text };
  const calls = answer.calls.map(({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } }));
  return { role: "assistant", content: answer.text || null, tool_calls: calls };
}

// A conversation of its own with what is shown up to a turn.
export function branch(conversation, last) {
  const copy = structuredClone({ ...conversation, id: newId(), at: Date.now(), title: conversation.title && `${conversation.title} (branch)`, turns: {}, picked: {} });
  for (const turn of path(conversation)) {
    add(copy, structuredClone(turn));
    if (turn.id === last.id) break;
  }
  copy.at = Date.now();
  return copy;
}

// Puts into `mine` what another tab has added to the same conversation; its objects stay the same ones, for whoever holds them.
// `isNewer`: the other tab wrote last, so that its title, instructions and settings are taken as well.
export function absorb(mine, theirs, isNewer) {
  for (const [id, turn] of Object.entries(theirs.turns)) {
    const held = mine.turns[id];
    if (held) absorbAnswers(held, turn);
    else mine.turns[id] = turn;
  }
  mine.picked = { ...theirs.picked, ...mine.picked };
  mine.at = Math.max(mine.at, theirs.at);
  if (isNewer) for (const name of ["title", "system", "options", "stop", "tools", "models"]) mine[name] = theirs[name];
  return mine;
}

function absorbAnswers(mine, theirs) {
  for (const answer of theirs.answers) {
    const held = mine.answers.find(({ id }) => id === answer.id);
    if (!held) mine.answers.push(answer);
    else if (answer.text.length + answer.thoughts.length > held.text.length + held.thoughts.length) Object.assign(held, answer);
  }
}

export function hasWords(conversation, words) {
  const whole = [conversation.title, ...Object.values(conversation.turns).flatMap((turn) => [turn.text, ...turn.answers.map((answer) => answer.text)])].join("\n").toLowerCase();
  return words.every((word) => whole.includes(word));
}

// A conversation out of what a file or the storage holds: known members of known types, and nothing else. Throws with the name
// of what is wrong.
export function checked(value) {
  if (value === null || typeof value !== "object" || typeof value.turns !== "object" || value.turns === null) throw new Error("a conversation has no `turns`");
  const found = Object.values(value.turns);
  if (found.length > MOST.turns) throw new Error(`a conversation has more than ${MOST.turns} turns`);
  const options = {};
  for (const name of OPTIONS) if (Number.isFinite(value.options?.[name])) options[name] = value.options[name];
  const turns = Object.fromEntries(found.map((turn) => [String(turn?.id), checkedTurn(turn)]));
  const picked = Object.fromEntries(Object.entries(value.picked ?? {}).filter(([parent, id]) => (parent === "" || Object.hasOwn(turns, parent)) && typeof id === "string"));
  return {
    format: FORMAT, id: named(value.id, "id"), title: string(value.title, MOST.name), at: number(value.at) || Date.now(), system: string(value.system),
    options, stop: string(value.stop, 4000), tools: string(value.tools), models: [0, 1].map((i) => string(value.models?.[i], MOST.name)), turns, picked,
  };
}

function checkedTurn(turn) {
  const id = named(turn?.id, "turns[].id");
  return {
    id, parent: string(turn.parent, MOST.name), at: number(turn.at), text: string(turn.text),
    images: list(turn.images, MOST.images).filter((url) => typeof url === "string" && url.length <= MOST.image && IMAGE.test(url)),
    results: list(turn.results, MOST.calls).map((result) => ({ id: string(result?.id, MOST.name), name: string(result?.name, MOST.name), content: string(result?.content) })),
    answers: list(turn.answers, MOST.answers).map(checkedAnswer), picked: [0, 1].map((side) => (typeof turn.picked?.[side] === "string" ? turn.picked[side] : null)),
  };
}

function checkedAnswer(answer) {
  const figures = {};
  for (const name of ["ttft", "ms", "tokens", "perSecond", "prompt", "cached"]) if (Number.isFinite(answer?.figures?.[name])) figures[name] = answer.figures[name];
  return {
    id: named(answer?.id, "answers[].id"), side: answer.side === 1 ? 1 : 0, model: string(answer.model, MOST.name), at: number(answer.at), text: string(answer.text),
    thoughts: string(answer.thoughts), error: string(answer.error, 4000), finish: string(answer.finish, 40), figures,
    calls: list(answer.calls, MOST.calls).map((call) => ({ id: string(call?.id, MOST.name), name: string(call?.name, MOST.name), arguments: string(call?.arguments) })),
  };
}

function named(value, what) {
  if (typeof value !== "string" || !/^[\w-]{1,64}$/.test(value)) throw new Error(`\`${what}\` must be a name of letters, digits and dashes`);
  return value;
}

const string = (value, most = MOST.text) => (typeof value === "string" ? value.slice(0, most) : "");
const number = (value) => (Number.isFinite(value) ? value : 0);
const list = (value, most) => (Array.isArray(value) ? value.slice(0, most) : []);
