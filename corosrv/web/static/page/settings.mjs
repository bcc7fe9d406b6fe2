// Instructions, sampling and tools of one conversation.

import { html, useState } from "./vendor/htm-preact.mjs";
import { toolsOf } from "./answering.mjs";
import { Dialog } from "./parts.mjs";
import { visible } from "./text.mjs";

const FIELDS = [
  ["temperature", "Temperature", 0, 5, 0.05, "0 always takes the likeliest word; higher is more varied"],
  ["top_p", "Top p", 0, 1, 0.01, "Only the likeliest words that together have this probability"],
  ["top_k", "Top k", 0, 1000, 1, "Only so many of the likeliest words; 0: all"],
  ["min_p", "Min p", 0, 1, 0.01, "No word less likely than this part of the likeliest"],
  ["repeat_penalty", "Repeat penalty", 0.5, 2, 0.01, "Above 1: words that were used become less likely"],
  ["presence_penalty", "Presence penalty", -2, 2, 0.05, "Lowers words that were used at all"],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.05, "Lowers words by how often they were used"],
  ["max_tokens", "Most tokens", 1, 1_000_000, 1, "Where an answer is cut"],
  ["seed", "Seed", 0, 4294967295, 1, "The same seed gives the same answer"],
];

export function SettingsDialog({ conversation, change, close }) {
  const [values, set] = useState(() => ({ title: conversation.title, system: conversation.system, stop: conversation.stop, tools: conversation.tools, ...Object.fromEntries(FIELDS.map(([name]) => [name, String(conversation.options[name] ?? "")])) }));
  const [trouble, tell] = useState("");
  const field = (name) => ({ value: values[name], onInput: (event) => set({ ...values, [name]: event.target.value }) });
  const submit = (event) => {
    event.preventDefault();
    try {
      if (values.tools.trim()) toolsOf(values.tools);
    } catch (error) {
      return tell(visible(error.message));
    }
    const options = {};
    for (const [name] of FIELDS) if (values[name] !== "" && Number.isFinite(Number(values[name]))) options[name] = Number(values[name]);
    const { title, system, stop, tools } = values;
    change({ title: title.trim(), system, stop, tools, options });
    return close();
  };
  return html`
    <${Dialog} title="This conversation" close=${close} kind="large">
      <form onSubmit=${submit}>
        <label class="field"><span>Title</span><input dir="auto" maxlength="200" ...${field("title")} /></label>
        <label class="field"><span>Instructions <small class="soft">the system prompt, before everything else</small></span><textarea id="system" rows="4" dir="auto" ...${field("system")}></textarea></label>
        <fieldset class="grid">
          <legend>Sampling <small class="soft">an empty field is the server's own value</small></legend>
          ${FIELDS.map(([name, label, min, max, step, words]) => html`<label class="field" title=${words}><span>${label}</span><input type="number" name=${name} inputmode="decimal" min=${min} max=${max} step=${step === 1 ? 1 : "any"} placeholder="default" ...${field(name)} /></label>`)}
        </fieldset>
        <label class="field"><span>Stop at <small class="soft">one text a line</small></span><textarea rows="2" ...${field("stop")}></textarea></label>
        <details class="fold" open=${Boolean(values.tools)}><summary>Tools</summary>
          <label class="field"><span>JSON <small class="soft">a list of functions as OpenAI's API has it; you write down what their calls give</small></span><textarea rows="6" class="code" spellcheck="false" placeholder='[{"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]' ...${field("tools")}></textarea></label>
        </details>
        <details class="fold"><summary>Keys</summary>
          <dl class="keys"><dt>Enter</dt><dd>send</dd><dt>Shift+Enter</dt><dd>new line</dd><dt>Esc</dt><dd>stop the answer</dd><dt>/</dt><dd>to the message field</dd><dt>Ctrl+K</dt><dd>search</dd><dt>Alt+N</dt><dd>new chat</dd></dl>
        </details>
        ${trouble && html`<p class="note bad" role="alert">${trouble}</p>`}
        <div class="buttons"><span class="gap"></span><button type="button" class="quiet" onClick=${close}>Cancel</button><button type="submit" class="main">Keep</button></div>
      </form>
    <//>`;
}
