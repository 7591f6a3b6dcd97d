// Who is logged in; the dialog to log in.

import { get, post, setCsrf } from "./api.js";
import { el } from "./dom.js";

export const session = { user: null, loginFirst: false, hasUsers: false };

export async function refresh() {
  const found = await get("api/session");
  session.user = found.user;
  session.loginFirst = found.login_first;
  session.hasUsers = found.has_users;
  setCsrf(found.csrf);
}

export async function logOut() {
  await post("api/logout", {});
  await refresh();
}

/** Opens the dialog; calls `done` after a login. */
export function askLogin(done) {
  const user = el("input", { name: "user", autocomplete: "username", required: true, autocapitalize: "none", spellcheck: "false" });
  const password = el("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const submit = el("button", { type: "submit", class: "primary", text: "Log in" });
  const cancel = el("button", { type: "button", text: "Cancel" });
  const none = session.hasUsers ? null : el("p", { class: "note" }, "There are no users yet: ", el("code", { text: "appliance users add NAME" }));
  const form = el("form", {},
    el("label", { class: "field" }, el("span", { text: "User" }), user),
    el("label", { class: "field" }, el("span", { text: "Password" }), password),
    problem, none, el("p", { class: "actions" }, submit, cancel));
  const dialog = el("dialog", { "aria-labelledby": "login-title" }, el("h2", { id: "login-title", text: "Log in" }),
    el("p", { class: "note", text: "With a user of the appliance." }), form);
  cancel.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      await post("api/login", { user: user.value, password: password.value });
      await refresh();
      dialog.close();
      done();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      password.value = "";
      password.focus();
    } finally {
      submit.disabled = false;
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  user.focus();
}
