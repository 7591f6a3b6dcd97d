// Dialogs that ask before something is changed: fields, and for what cannot be undone its name, typed.

import { post } from "./api.js";
import { el } from "./dom.js";

let number = 0;

/** A labelled field of a form. */
export const field = (label, input) => el("label", { class: "field" }, el("span", { text: label }), input);

export const text = (name, more = {}) => el("input", { name, autocomplete: "off", autocapitalize: "none", spellcheck: "false", ...more });

export const select = (name, options) =>
  el("select", { name }, ...options.map((one) => el("option", { value: Array.isArray(one) ? one[0] : one, text: Array.isArray(one) ? one[1] : one })));

/**
 * Opens a dialog.  `send` gets the values of the named fields, and what was typed; it may throw an Error to be shown.
 * `typed`: the name that has to be typed before the button works; the server checks it again.
 */
export function ask({ title, note = "", fields = [], typed = "", label, send, done = () => {} }) {
  number += 1;
  const id = `dialog-${number}`;
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const submit = el("button", { type: "submit", class: typed ? "danger" : "primary", text: label });
  const cancel = el("button", { type: "button", text: "Cancel" });
  const confirm = typed ? text("confirm", { "data-typed": "" }) : null;
  const name = typed ? el("p", {}, "To confirm, type its name: ", el("code", {}, el("bdi", { text: typed }))) : null;
  const form = el("form", {}, note ? el("p", { class: "note" }, el("bdi", { text: note })) : null, ...fields, name,
    confirm ? field("Name", confirm) : null, problem, el("p", { class: "actions" }, submit, cancel));
  const dialog = el("dialog", { "aria-labelledby": id }, el("h2", { id, text: title }), form);
  if (confirm) {
    submit.disabled = true;
    confirm.addEventListener("input", () => { submit.disabled = confirm.value !== typed; });
  }
  cancel.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const values = Object.fromEntries([...form.querySelectorAll("[name]")].map((one) => [one.name, one.type === "checkbox" ? one.checked : one.value]));
    submit.disabled = true;
    try {
      const result = await send(values);
      dialog.close();
      done(result);
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    } finally {
      submit.disabled = Boolean(confirm) && confirm.value !== typed;
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  dialog.querySelector("input, select, textarea")?.focus();
}

/** Carries out a change; returns its result. */
export async function act(verb, args, confirm = "") {
  return (await post("api/act", { verb, arguments: args, confirm })).result;
}

export const button = (label, click, danger = false) =>
  el("button", { type: "button", class: danger ? "danger" : "", text: label, on: { click } });

/** `name=value` on each line, as an object; an empty value is null: back to what holds without it. */
export function settingsOf(lines) {
  const found = {};
  for (const line of lines.split("\n").map((one) => one.trim()).filter(Boolean)) {
    const [, name, value] = /^([^=]+?)\s*=\s*(.*)$/.exec(line) || [];
    if (!name) throw new Error(`Not NAME=VALUE: ${line}`);
    found[name] = value === "" ? null : value;
  }
  return found;
}
