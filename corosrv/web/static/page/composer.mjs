// The field for the next message, with its pictures.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.mjs";
import { imagesOf, MOST_IMAGES, readImage } from "./images.mjs";
import { Icon } from "./parts.mjs";
import { visible } from "./text.mjs";

const HIGHEST = 240; // pixels

export function Composer({ conversation, server, isRunning, send, stop }) {
  const [text, setText] = useState("");
  const [images, setImages] = useState([]);
  const [trouble, tell] = useState("");
  const [isOver, over] = useState(false);
  const field = useRef();
  const chosen = (server.models ?? []).filter(({ id }) => conversation.models.includes(id));
  const takesImages = chosen.length > 0 && chosen.every((model) => model.takesImages);
  const canSend = (words) => !isRunning && (words.trim() || images.length) && conversation.models[0];

  useEffect(() => grow(field.current), [text]);
  useEffect(() => {
    if (!matchMedia("(pointer: coarse)").matches) field.current.focus();
  }, []);

  const attach = async (files) => {
    if (!files.length) return;
    if (!takesImages) return tell("This model takes no pictures.");
    tell("");
    for (const file of files) {
      try {
        const url = await readImage(file);
        setImages((list) => (list.length < MOST_IMAGES ? [...list, url] : (tell(`At most ${MOST_IMAGES} pictures`), list)));
      } catch (error) {
        tell(visible(error.message));
      }
    }
  };
  useDrop(over, attach, takesImages);

  const submit = (event) => {
    event.preventDefault();
    if (isRunning) return stop();
    const words = field.current.value; // `text` may be that of the last drawing
    if (!canSend(words)) return undefined;
    send({ text: words, images });
    field.current.value = "";
    setText("");
    setImages([]);
    return tell("");
  };
  const hear = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !matchMedia("(pointer: coarse)").matches) {
      event.preventDefault();
      if (!isRunning) submit(event);
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  };
  const paste = (event) => {
    const files = imagesOf(event.clipboardData);
    if (files.length) {
      event.preventDefault();
      attach(files);
    }
  };
  return html`
    <form class=${`composer ${isOver ? "is-over" : ""}`} onSubmit=${submit}>
      ${trouble && html`<p class="note bad" role="alert">${trouble}</p>`}
      <div class="box">
        ${images.length > 0 && html`<div class="pictures">${images.map((url, i) => html`<span><img src=${url} alt=${`Picture ${i + 1}`} /><button type="button" class="icon" aria-label=${`Remove picture ${i + 1}`} onClick=${() => setImages(images.filter((_, j) => j !== i))}><${Icon} name="close" /></button></span>`)}</div>`}
        <textarea id="message" ref=${field} rows="1" dir="auto" placeholder="Write a message" aria-label="Message" value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${hear} onPaste=${paste}></textarea>
        <div class="row">
          ${takesImages && html`<label class="icon" title="Add a picture"><span class="hidden">Add a picture</span><${Icon} name="image" /><input class="hidden" type="file" accept="image/*" multiple onChange=${(event) => { attach([...event.target.files]); event.target.value = ""; }} /></label>`}
          <span class="gap"></span>
          <span class="soft small not-phone">${isRunning ? "Esc stops" : "Enter sends, Shift+Enter breaks the line"}</span>
          ${isRunning
            ? html`<button type="submit" class="send" aria-label="Stop"><${Icon} name="stop" /></button>`
            : html`<button type="submit" class="send" aria-label="Send" disabled=${!canSend(text)}><${Icon} name="send" /></button>`}
        </div>
      </div>
    </form>`;
}

function grow(field) {
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, HIGHEST)}px`;
}

// Pictures may be dropped anywhere on the page.
function useDrop(over, attach, takesImages) {
  useEffect(() => {
    const has = (event) => event.dataTransfer?.types.includes("Files");
    const drag = (event) => {
      if (!has(event)) return;
      event.preventDefault();
      over(event.type === "dragover");
    };
    const drop = (event) => {
      if (!has(event)) return;
      event.preventDefault();
      over(false);
      attach(imagesOf(event.dataTransfer));
    };
    const heard = [["dragover", drag], ["dragleave", drag], ["drop", drop]];
    for (const [name, hear] of heard) addEventListener(name, hear);
    return () => {
      for (const [name, hear] of heard) removeEventListener(name, hear);
    };
  }, [takesImages]);
}
