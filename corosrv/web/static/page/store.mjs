// The conversations that this browser keeps: one entry of localStorage each, so that tabs write beside each other.

import { absorb, checked, hasWords, newId } from "./tree.mjs";

const MOST_IMPORTED = 2000;
export const MOST_IMPORT_BYTES = 50_000_000;

export class Store {
  // `place` sets servers apart that are mounted on one origin.
  constructor(place, storage = safeStorage()) {
    this.prefix = `corosrv.chat.${place}.`;
    this.storage = storage;
    this.kept = new Map();
    this.unsaved = new Set();
    this.raw = new Map(); // as it was last read or written, to see what another tab has changed since
    this.trouble = storage ? "" : "This browser keeps nothing for this page: conversations end with the tab.";
    this.listeners = new Set();
    for (const key of keysOf(storage)) if (key.startsWith(this.prefix)) this.read(key, storage.getItem(key));
  }

  read(key, raw) {
    try {
      const conversation = checked(JSON.parse(raw));
      if (this.prefix + conversation.id !== key) return;
      const mine = this.kept.get(conversation.id);
      if (mine) absorb(mine, conversation, true);
      else this.kept.set(conversation.id, conversation);
      this.raw.set(conversation.id, raw);
    } catch {
      // Somebody else's entry, or a broken one: it is left as it is.
    }
  }

  // Called when another tab has written.
  hear({ key, newValue, storageArea }) {
    if (storageArea !== this.storage || !key?.startsWith(this.prefix)) return;
    const id = key.slice(this.prefix.length);
    if (newValue !== null) this.read(key, newValue);
    else if (!this.unsaved.has(id)) this.forget(id);
    this.tell();
  }

  list(words = "") {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [...this.kept.values()].filter((one) => !wanted.length || hasWords(one, wanted));
    return found.sort((a, b) => b.at - a.at);
  }

  get(id) {
    return this.kept.get(id) ?? null;
  }

  // Keeps a conversation; what another tab has added to it meanwhile stays.
  save(conversation) {
    this.kept.set(conversation.id, conversation);
    if (!this.storage) return;
    const key = this.prefix + conversation.id;
    try {
      const there = this.storage.getItem(key);
      if (there !== null && there !== this.raw.get(conversation.id)) absorb(conversation, checked(JSON.parse(there)), false);
      this.write(key, conversation);
    } catch (error) {
      this.unsaved.add(conversation.id);
      this.trouble = error?.name === "QuotaExceededError" ? "The browser's storage is full: this conversation is not kept. Export what you need and delete some." : `The conversation cannot be kept: ${error?.message ?? error}`;
    }
    this.tell();
  }

  write(key, conversation) {
    const hasImages = Object.values(conversation.turns).some((turn) => turn.images.length);
    const trouble = this.put(key, conversation, hasImages) ? "" : "The browser's storage is full: pictures of this conversation are not kept.";
    this.unsaved.delete(conversation.id);
    if (this.unsaved.size === 0) this.trouble = trouble;
  }

  // Returns whether all of it is kept; pictures are what takes the room, and are left out first.
  put(key, conversation, hasImages) {
    const keep = (raw) => {
      this.storage.setItem(key, raw);
      this.raw.set(conversation.id, raw);
    };
    try {
      keep(JSON.stringify(conversation));
      return true;
    } catch (error) {
      if (!hasImages) throw error;
      keep(JSON.stringify(conversation, (name, value) => (name === "images" ? [] : value)));
      return false;
    }
  }

  remove(id) {
    this.storage?.removeItem(this.prefix + id);
    this.forget(id);
    if (this.unsaved.size === 0) this.trouble = this.storage ? "" : this.trouble;
    this.tell();
  }

  forget(id) {
    this.kept.delete(id);
    this.unsaved.delete(id);
    this.raw.delete(id);
  }

  exported(ids = [...this.kept.keys()]) {
    return JSON.stringify({ corosrv: "conversations", format: 1, conversations: ids.map((id) => this.kept.get(id)).filter(Boolean) }, null, 1);
  }

  // Takes a file of conversations, each under a new id; returns how many. Throws with what is wrong, and then keeps none.
  imported(text) {
    if (text.length > MOST_IMPORT_BYTES) throw new Error("the file is larger than 50 MB");
    const value = JSON.parse(text);
    const found = Array.isArray(value) ? value : value?.conversations;
    if (!Array.isArray(found)) throw new Error("the file has no list `conversations`");
    if (found.length > MOST_IMPORTED) throw new Error(`the file has more than ${MOST_IMPORTED} conversations`);
    const conversations = found.map((one) => ({ ...checked(one), id: newId() }));
    for (const one of conversations) this.save(one);
    return conversations.length;
  }

  tell() {
    for (const listener of this.listeners) listener();
  }
}

function keysOf(storage) {
  return storage ? Object.keys(storage) : [];
}

function safeStorage() {
  try {
    const storage = window.localStorage;
    storage.getItem("corosrv");
    return storage;
  } catch {
    return null;
  }
}
