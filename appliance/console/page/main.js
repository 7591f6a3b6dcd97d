// Starts the page: sections, colours, login, and the view that the address names.

import { access, clients } from "./access.js";
import { el, empty, route, setText } from "./dom.js";
import { close, connection, look, onChange, rows } from "./live.js";
import { group, groups, isPipeline } from "./groups.js";
import { input, inputs } from "./inputs.js";
import { searchOfTopics } from "./messages.js";
import { overview } from "./overview.js";
import { sql } from "./sql.js";
import { askLogin, logOut, refresh, session } from "./session.js";
import { topic, topics, trash } from "./topics.js";

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const banner = document.getElementById("banner");
const dot = document.getElementById("state-dot");
const loginButton = document.getElementById("login");
const themeButton = document.getElementById("theme");
const LINKS = [["", "Overview"], ["topics", "Topics"], ["search", "Search"], ["groups", "Groups"], ["inputs", "Inputs"], ["pipelines", "Pipelines"], ["sql", "SQL"], ["clients", "Clients"], ["access", "Access"]];
const THEMES = [["", "◐", "Colours: as the system"], ["light", "☀", "Colours: light"], ["dark", "☾", "Colours: dark"]];
let view = null;

function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  let parts;
  try {
    parts = path.split("/").map(decodeURIComponent);
  } catch {
    parts = ["?"];
  }
  return { parts, query: new URLSearchParams(query) };
}

function make({ parts: [section, name = "", tab = ""], query }) {
  if (section === "" && name === "") return overview();
  if (section === "topics") return name ? topic(name, tab, query) : topics();
  if (section === "groups") return name ? group(name) : groups(false);
  if (section === "search") return searchOfTopics(query);
  if (section === "pipelines") return groups(true);
  if (section === "inputs") return name ? input(name) : inputs();
  if (section === "sql") return sql(query);
  if (section === "trash") return trash();
  if (section === "clients") return clients();
  if (section === "access") return access(name);
  const heading = el("h1", { tabindex: "-1", text: "There is no such page" });
  const element = el("div", {}, heading, empty("The address names no section of the console.", el("p", {}, el("a", { href: route(""), text: "Go to the overview" }))));
  return { element, heading, title: "No such page", update: () => {} };
}

function show(focus) {
  const at = place();
  view?.close?.();
  if (session.loginFirst) {
    const heading = el("h1", { tabindex: "-1", text: "Log in first" });
    const button = el("button", { type: "button", class: "primary", text: "Log in", on: { click: () => askLogin(started) } });
    view = { element: el("div", {}, heading, empty("Nothing is shown before a login.", button)), heading, title: "Log in", update: () => {} };
  } else {
    view = make(at);
    const [section, name = ""] = at.parts;
    look(section === "topics" ? name : "", section === "groups" ? name : "");
  }
  main.replaceChildren(view.element);
  document.title = `${view.title} · appliance`;
  for (const link of nav.querySelectorAll("a")) {
    if (link.dataset.section === at.parts[0]) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  update();
  if (focus) {
    view.heading.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

function update() {
  const pipelines = [...rows("groups")].some(([name, row]) => isPipeline(name, row));
  nav.querySelector('[data-section="pipelines"]').hidden = !pipelines;
  const alerts = rows("alerts").get("") || [];
  const worst = alerts.some((one) => one.level === "critical") ? "bad" : alerts.length ? "warn" : "good";
  const lost = connection.state === "waiting";
  dot.className = `dot ${lost ? "bad" : rows("appliance").size ? worst : ""}`;
  banner.hidden = !lost;
  if (lost) setText(banner, "The connection to the console is lost. What is shown is old; trying again…");
  main.classList.toggle("stale", lost);
  if (rows("topics").size || rows("groups").size || connection.at) view?.update();
}

function showSession() {
  setText(document.getElementById("user"), session.user || "");
  setText(loginButton, session.user ? "Log out" : "Log in");
}

async function started() {
  showSession();
  close(); // what may be seen is another now
  show(false);
}

function theme(next) {
  const names = THEMES.map(([name]) => name);
  const now = document.documentElement.dataset.theme || "";
  const index = (names.indexOf(now) + (next ? 1 : 0)) % names.length;
  const [name, sign, label] = THEMES[index];
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  themeButton.textContent = sign;
  themeButton.setAttribute("aria-label", label);
  themeButton.title = label;
  try {
    localStorage.setItem("theme", name);
  } catch {
    // storage is off: until the page is loaded again
  }
}

nav.append(...LINKS.map(([section, label]) => el("a", { href: route(section), "data-section": section, hidden: section === "pipelines", text: label })));
theme(false);
themeButton.addEventListener("click", () => theme(true));
loginButton.addEventListener("click", async () => {
  if (!session.user) {
    askLogin(started);
    return;
  }
  try {
    await logOut();
  } catch {
    await refresh().catch(() => {});
  }
  started();
});
addEventListener("hashchange", () => {
  if (location.hash !== "#main") show(true);
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const field = document.getElementById("search") || document.getElementById("filter");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  }
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
/** After a lost connection the login may be over: then the page says so instead of trying for ever. */
async function onLost() {
  const before = [session.user, session.loginFirst].join();
  await refresh().catch(() => {});
  if ([session.user, session.loginFirst].join() !== before) started();
}

onChange(() => {
  update();
  if (connection.state === "waiting") onLost();
});
refresh().catch(() => {}).finally(started);
