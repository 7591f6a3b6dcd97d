// Who may do what: users, roles, access rules, quotas; and who is connected.

import { act, ask, button, field, select, text } from "./dialogs.js";
import { count, duration, el, moment, route, setText, size } from "./dom.js";
import { listing } from "./listing.js";
import { rows } from "./live.js";
import { session } from "./session.js";

const TABS = [["", "Users"], ["roles", "Roles"], ["rules", "Access rules"], ["quotas", "Quotas"]];
const RESOURCES = ["Topic", "Group", "TransactionalId", "Cluster"];
const OPERATIONS = ["Read", "Write", "Create", "Delete", "Alter", "Describe", "DescribeConfigs", "AlterConfigs", "ClusterAction", "IdempotentWrite", "All"];
const CLUSTER = "kafka-cluster";
const ANONYMOUS = "User:ANONYMOUS";
const plain = (value) => (value === null || value === undefined ? "–" : String(value));
/** Text whose words are broken only if they are very long. */
const whole = (value, more = "") => el("bdi", { class: `whole ${more}`, text: value });
const bdi = (value) => el("bdi", { text: plain(value) });

export function access(tab) {
  const heading = el("h1", { tabindex: "-1", text: "Access" });
  const nav = el("nav", { class: "tabs", "aria-label": "Access" },
    ...TABS.map(([path, label]) => el("a", { href: path ? route("access", path) : route("access"), "aria-current": path === tab ? "page" : null, text: label })));
  const view = ({ roles, rules, quotas }[tab] ?? users)();
  return { element: el("div", {}, heading, nav, view.element), heading, title: "Access", update: () => {}, close: view.close };
}

/** A list with the button that adds to it, for those who are logged in. */
function withButton(list, label, click) {
  const bar = session.user ? el("p", { class: "actions" }, button(label, click)) : null;
  return { element: el("div", {}, bar, list.element), close: list.close };
}

/** Whether a user is locked, and until when there is one. */
function standing({ locked, expired, expires_ms: expires }) {
  const until = expires === null ? "" : `${expired ? "expired" : "until"} ${moment(expires)}`;
  return [locked ? "locked" : "", until].filter(Boolean).join(", ");
}

const actions = (show) => (session.user ? [{ name: "actions", label: "Change", show }] : []);

function users() {
  const list = listing({
    what: "users",
    label: "Users",
    sort: "name",
    nothing: "There are no users: nobody can log in with a password.",
    note: el("p", { class: "note" }, "Users log in here, and as clients where a listener asks for it (SASL): the ", el("a", { href: route(""), text: "overview" }), " has the listeners. What they may do is said by ", el("a", { href: route("access", "rules"), text: "access rules" }), "."),
    keyOf: (row) => row.name,
    columns: [
      { name: "name", label: "User", head: true, value: (row) => row.name, show: (row) => bdi(row.name) },
      { name: "mechanisms", label: "Can log in with", show: (row) => Object.keys(row.mechanisms).join(", ") },
      { name: "roles", label: "Roles", show: (row) => bdi(some(row.roles)) },
      { name: "standing", label: "Standing", show: standing },
      ...actions((row) => el("span", { class: "buttons" }, button("Password", () => password(row.name, false)),
        button(row.locked ? "Unlock" : "Lock", () => lock(row)), button("End connections", () => kick(row.name)), button("Delete", () => remove(row.name), true))),
    ],
  });
  function password(name, fresh) {
    const first = text("password", { type: "password", autocomplete: "new-password", required: true });
    const again = text("again", { type: "password", autocomplete: "new-password", required: true });
    ask({
      title: fresh ? "Add a user" : "Another password",
      note: fresh ? "What a new user may do is said by access rules: without one, nothing." : `For ${name}. Connections that are logged in stay so; sessions of the console end.`,
      fields: [fresh ? field("User", text("name", { required: true, maxlength: "255", autocomplete: "username" })) : text("user", { value: name, autocomplete: "username", hidden: true }), field("Password", first), field("Again", again)],
      label: fresh ? "Add" : "Change the password",
      send: (given) => {
        if (given.password !== given.again) throw new Error("The two passwords differ.");
        return act("put_user", { name: fresh ? given.name : name, password: given.password, new: fresh });
      },
      done: list.load,
    });
  }
  const without = { without_password: true };  // also users of certificates and tokens, whom somebody has locked
  function lock({ name, locked }) {
    ask({
      title: locked ? "Unlock a user" : "Lock a user", label: locked ? "Unlock the user" : "Lock the user",
      note: locked ? `${name} can log in again.` : `Nobody logs in as ${name} any more, and the connections of this user end. Password and access rules stay.`,
      send: () => act("alter_user", { name, locked: !locked, ...without }),
      done: list.load,
    });
  }
  function kick(name) {
    ask({
      title: "End connections", note: `All connections of ${name} end, and sessions of the console. The user may connect again.`, label: "End them",
      send: () => act("alter_user", { name, kick: true, ...without }),
      done: list.load,
    });
  }
  function remove(name) {
    ask({
      title: "Delete a user", note: "Connections of this user end. Access rules, roles, a lock and a time to expire stay.", typed: name, label: "Delete the user",
      send: (given) => act("delete_user", { name }, given.confirm),
      done: list.load,
    });
  }
  return withButton(list, "Add a user", () => password("", true));
}

const NAMES_MAX = 10;

/** The first of some names, and how many more there are. */
function some(names) {
  const more = names.length - NAMES_MAX;
  return names.slice(0, NAMES_MAX).join(", ") + (more > 0 ? ` and ${count(more)} more` : "");
}

function roles() {
  const list = listing({
    what: "roles",
    label: "Roles",
    sort: "name",
    nothing: "There are no roles.",
    note: el("p", { class: "note", text: "A role is a set of access rules for all users who have it: those for Role:NAME." }),
    keyOf: (row) => row.name,
    columns: [
      { name: "name", label: "Role", head: true, value: (row) => row.name, show: (row) => bdi(row.name) },
      { name: "users", label: "Users", show: (row) => bdi(some(row.users)) },
      { name: "rules", label: "Access rules", number: true, value: (row) => row.rules, show: (row) => count(row.rules) },
      ...actions((row) => el("span", { class: "buttons" }, button("Give", () => grant(row.name)), button("Take", () => revoke(list.row(row.name))), button("Delete", () => remove(row.name), true))),
    ],
  });
  const name = () => text("name", { required: true, maxlength: "249", pattern: "[A-Za-z0-9._\\-]+" });
  function add() {
    ask({ title: "Add a role", note: "Its rules are added under Access rules, for Role: and this name.", fields: [field("Role", name())], label: "Add", send: (given) => act("create_role", given), done: list.load });
  }
  function grant(role) {
    const also = el("input", { type: "checkbox", name: "without_password" });
    ask({
      title: "Give a role to a user", note: `The rules of ${role} hold for the user at once.`, label: "Give the role",
      fields: [field("User, without User: before the name", text("user", { required: true })), field("Also a user without a password here, of a certificate or a token", also)],
      send: ({ user, without_password }) => act("alter_role", { name: role, grant: [user], without_password }),
      done: list.load,
    });
  }
  function revoke({ name: role, users: having }) {
    ask({
      title: "Take a role from a user", note: `What the user may through ${role} ends at once, and what it denies.`, label: "Take the role",
      fields: [field("User", select("user", having.map((one) => [one, one])))],
      send: ({ user }) => act("alter_role", { name: role, revoke: [user] }),
      done: list.load,
    });
  }
  function remove(role) {
    ask({
      title: "Delete a role", note: "Its access rules go, too: its users lose what they may through it, and are denied what it denies no more.", typed: role, label: "Delete the role",
      send: (given) => act("delete_role", { name: role }, given.confirm),
      done: list.load,
    });
  }
  return withButton(list, "Add a role", add);
}

const FIELDS = ["principal", "host", "permission", "operation", "resource", "name", "pattern"];

/** Says so if a rule would be about a topic or group that there is not, as `appliance acl add` does. */
function notThere(resource, name, prefixed) {
  const section = { Topic: "topics", Group: "groups" }[resource];
  if (!section || !name || name === "*") return "";
  const names = [...rows(section).keys()];
  if (prefixed ? names.some((one) => one.startsWith(name)) : names.includes(name)) return "";
  const kind = resource.toLowerCase();
  return prefixed ? `No ${kind} begins so yet: the rule applies to those that are made.` : `There is no such ${kind} yet: the rule applies when it is made.`;
}

function rules() {
  const list = listing({
    what: "acls",
    label: "Access rules",
    sort: "principal",
    nothing: "There are no access rules.",
    note: el("p", { class: "note", text: "They hold while security.authorizer is \"acl\". Who has no rule may do nothing, except super users. A denial wins over any permission." }),
    keyOf: (row) => [...FIELDS, "role"].map((name) => row[name] ?? "").join("\n"),
    columns: [
      { name: "principal", label: "Who", head: true, value: (row) => row.principal, show: (row) => bdi(row.principal) },
      { name: "host", label: "From", value: (row) => row.host, show: (row) => bdi(row.host === "*" ? "anywhere" : row.host) },
      { name: "permission", label: "May", value: (row) => row.permission, show: (row) => (row.permission === "Allow" ? row.operation : `not ${row.operation}`) },
      { name: "resource", label: "What", value: (row) => row.resource, show: (row) => row.resource },
      { name: "name", label: "Name", value: (row) => row.name, show: (row) => bdi(row.pattern === "Prefixed" ? `${row.name}…` : row.name) },
      { name: "role", label: "Through the role", value: (row) => row.role ?? "", show: (row) => bdi(row.role ?? "–") },
      ...actions((row) => (row.role ? "" : button("Delete", () => remove(row), true))),
    ],
  });
  function add() {
    const resource = select("resource", RESOURCES);
    const name = text("name", { required: true });
    const named = field("Name (* is all)", name);
    const pattern = select("pattern", [["Literal", "exactly"], ["Prefixed", "all that begin so"]]);
    const absent = el("p", { class: "note", role: "status" });
    const check = () => {
      named.hidden = resource.value === "Cluster";
      name.required = !named.hidden;
      setText(absent, notThere(resource.value, name.value, pattern.value === "Prefixed"));
    };
    for (const one of [resource, name, pattern]) one.addEventListener("input", check);
    ask({
      title: "Add an access rule",
      fields: [
        field("Who, such as User:shipper or Role:shippers; User:* is everybody", text("principal", { required: true, value: "User:" })),
        field("May or may not", select("permission", [["Allow", "may"], ["Deny", "may not"]])),
        field("Operation", select("operation", OPERATIONS)), field("What", resource), named,
        field("Of the name", pattern), absent,
        field("From the address (* is any)", text("host", { required: true, value: "*" })),
      ],
      label: "Add",
      send: ({ principal, permission, operation, resource: kind, name: called, pattern: of, host }) => {
        const cluster = kind === "Cluster";
        return act("add_acls", { acls: [{ principal, permission, operation, resource: kind, name: cluster ? CLUSTER : called, pattern: cluster ? "Literal" : of, host }] });
      },
      done: list.load,
    });
  }
  function remove(row) {
    ask({
      title: "Delete an access rule", note: `${row.permission} ${row.operation} on ${row.resource} ${row.name} (${row.pattern}) from ${row.host}`, typed: row.principal, label: "Delete the rule",
      send: (given) => act("delete_acls", Object.fromEntries(FIELDS.map((name) => [name, row[name]])), given.confirm),
      done: list.load,
    });
  }
  return withButton(list, "Add a rule", add);
}

const LIMITS = [["producer_byte_rate", "Bytes in per second"], ["consumer_byte_rate", "Bytes out per second"], ["request_rate", "Requests per second"]];
const whose = (name, all) => (name === null ? "any" : name === "" ? `${all} without a quota` : name);

function quotas() {
  const shown = (key, value) => (value === undefined ? "–" : key === "request_rate" ? `${value}/s` : `${size(value)}/s`);
  const list = listing({
    what: "quotas",
    label: "Quotas",
    sort: "user",
    nothing: "There are no quotas: nobody is limited.",
    keyOf: (row) => JSON.stringify([row.user, row.client_id]),
    columns: [
      { name: "user", label: "User", head: true, value: (row) => row.user, show: (row) => bdi(whose(row.user, "each user")) },
      { name: "client", label: "Client id", value: (row) => row.client_id, show: (row) => bdi(whose(row.client_id, "each client id")) },
      ...LIMITS.map(([key, label]) => ({ name: key, label, number: true, value: (row) => row.limits[key], show: (row) => shown(key, row.limits[key]) })),
      ...actions((row, key) => button("Change", () => change(list.row(key)))),
    ],
  });
  function change(row) {
    const kinds = (name) => select(name, [["any", "any"], ["named", "the one named"], ["default", "each without a quota of its own"]]);
    const whom = row ? [] : [
      field("User", kinds("user_kind")), field("Name of the user", text("user")),
      field("Client id", kinds("client_kind")), field("Name of the client id", text("client_id")),
    ];
    const limits = LIMITS.map(([key, label]) => field(`${label} (empty: no limit)`, text(key, { inputmode: "decimal", pattern: "[0-9]+([.][0-9]+)?", value: row?.limits[key] === undefined ? "" : String(row.limits[key]) })));
    const entity = (given) => {
      if (row) return { user: row.user, client_id: row.client_id };
      const of = (kind, name) => (kind === "any" ? null : kind === "default" ? "" : name);
      for (const [kind, name] of [[given.user_kind, given.user], [given.client_kind, given.client_id]]) {
        if (kind === "named" && !name) throw new Error("Give the name.");
      }
      return { user: of(given.user_kind, given.user), client_id: of(given.client_kind, given.client_id) };
    };
    ask({
      title: row ? "Change a quota" : "Add a quota", note: "Who uses more is slowed down, and not refused.", fields: [...whom, ...limits], label: row ? "Change" : "Add",
      send: (given) => {
        const wanted = LIMITS.map(([key]) => [key, given[key] === "" ? null : Number(given[key])]).filter(([key, value]) => value !== null || row?.limits[key] !== undefined);
        return act("put_quota", { ...entity(given), limits: Object.fromEntries(wanted) });
      },
      done: list.load,
    });
  }
  return withButton(list, "Add a quota", () => change(null));
}

/** Who is connected: as `appliance clients`. */
export function clients() {
  const heading = el("h1", { tabindex: "-1", text: "Clients" });
  const list = listing({
    what: "clients",
    label: "Clients",
    nothing: "Nobody is connected.",
    note: el("p", { class: "note", text: "Those that move most come first. Bytes are of connections that are open now." }),
    keyOf: (row) => JSON.stringify([row.user, row.host, row.client_id, row.software, row.listener]),
    columns: [
      { name: "user", label: "User", head: true, value: (row) => row.user, show: (row) => whole(row.user === ANONYMOUS ? "not logged in" : row.user) },
      { name: "host", label: "Address", value: (row) => row.host, show: (row) => whole(row.host || "this host") },
      { name: "client", label: "Client id, software", value: (row) => row.client_id, show: (row) => el("span", {}, whole(row.client_id || "–"), " ", whole(row.software, "soft")) },
      { name: "listener", label: "Listener", value: (row) => row.listener, show: (row) => whole(row.listener) },
      { name: "connections", label: "Connections", number: true, value: (row) => row.connections, show: (row) => count(row.connections) },
      { name: "in", label: "Sends", number: true, value: (row) => row.in_s, show: (row) => `${size(Math.round(row.in_s))}/s` },
      { name: "out", label: "Fetches", number: true, value: (row) => row.out_s, show: (row) => `${size(Math.round(row.out_s))}/s` },
      { name: "total", label: "In and out", number: true, value: (row) => row.bytes_in + row.bytes_out, show: (row) => `${size(row.bytes_in)}, ${size(row.bytes_out)}` },
      { name: "since", label: "For", number: true, value: (row) => -row.since, show: (row) => duration(Math.max(0, Date.now() / 1000 - row.since)) },
    ],
  });
  return { element: el("div", {}, heading, list.element), heading, title: "Clients", update: () => {}, close: list.close };
}
