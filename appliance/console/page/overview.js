// The first view: what is wrong, how much comes in, how full the disk is.

import { ago, badge, compact, count, el, empty, plural, rate, route, setText, size, svg } from "./dom.js";
import { history, rows } from "./live.js";

export function overview() {
  const figures = new Map();
  const figure = (name, label) => {
    const value = el("dd", { class: "value", text: "–" });
    const note = el("dd", { class: "note" });
    figures.set(name, { value, note });
    return el("div", { class: "figure" }, el("dt", { text: label }), value, note);
  };
  const line = svg("polyline", { class: "line", "vector-effect": "non-scaling-stroke" });
  const area = svg("polygon", { class: "area" });
  const chart = svg("svg", { class: "chart", viewBox: "0 0 300 60", preserveAspectRatio: "none", role: "img" }, area, line);
  chart.setAttribute("aria-label", "Bytes per second, the last minutes");
  const peak = el("p", { class: "note" });
  const used = el("div", { class: "meter-fill" });
  const meter = el("div", { class: "meter", title: "Disk used", role: "meter", "aria-label": "Disk used", "aria-valuemin": "0", "aria-valuemax": "100" }, used);
  const alerts = el("div", { class: "alerts" });
  const facts = el("dl", { class: "facts" });
  const heading = el("h1", { tabindex: "-1", text: "Overview" });
  const element = el(
    "div",
    {},
    heading,
    el("section", { "aria-labelledby": "alerts-title" }, el("h2", { id: "alerts-title", text: "What is wrong" }), alerts),
    el("section", { "aria-label": "Figures" },
      el("dl", { class: "figures" },
        figure("messages", "Messages in"), figure("bytes", "Bytes in"), figure("topics", "Topics"), figure("groups", "Groups"), figure("disk", "Disk free")),
      meter),
    el("section", { class: "card", "aria-labelledby": "rate-title" }, el("h2", { id: "rate-title", text: "Bytes in per second" }), chart, peak,
      el("p", { class: "note" }, el("a", { href: route("clients"), text: "Who sends how much" }), " · ", el("a", { href: route("topics"), text: "Into which topics" }))),
    el("section", { "aria-labelledby": "facts-title" }, el("h2", { id: "facts-title", text: "This appliance" }), facts),
  );
  const put = (name, value, note = "") => {
    setText(figures.get(name).value, value);
    setText(figures.get(name).note, note);
  };

  let shownAlerts = "";
  let shownFacts = "";
  function update() {
    const topics = [...rows("topics").values()];
    const groups = [...rows("groups").values()];
    const whole = rows("appliance").get("");
    put("topics", count(topics.length), plural(topics.reduce((sum, row) => sum + row.partitions, 0), "partition"));
    put("groups", count(groups.length), plural(groups.reduce((sum, row) => sum + row.members, 0), "member"));
    if (!whole) {
      alerts.replaceChildren(empty("Log in to see the state of the appliance."));
      return;
    }
    put("messages", rate(whole.messages_per_s, compact), `${compact(sum(topics, "messages"))} stored`);
    put("bytes", rate(whole.bytes_per_s, size), `${size(whole.bytes)} stored`);
    put("disk", size(whole.disk.free), `of ${size(whole.disk.total)}`);
    const percent = Math.round((100 * (whole.disk.total - whole.disk.free)) / whole.disk.total);
    used.style.width = `${percent}%`;
    meter.setAttribute("aria-valuenow", String(percent));
    meter.classList.toggle("high", percent >= 90);
    const found = rows("alerts").get("") || [];
    if (JSON.stringify(found) !== shownAlerts) {
      shownAlerts = JSON.stringify(found);
      alerts.replaceChildren(...(found.length ? found.map(alertCard) : [el("p", { class: "fine", text: "Nothing. Everything that can be seen from here is well." })]));
    }
    draw(line, area, peak);
    const processes = Object.entries(whole.processes).map(([role, number]) => `${number} ${role}`).join(", ");
    const text = JSON.stringify([whole.state, whole.version, whole.listeners, whole.zookeeper, processes, ago(whole.started)]);
    if (text !== shownFacts) {
      shownFacts = text;
      facts.replaceChildren(
        ...fact("State", badge(whole.state)),
        ...fact("Version", whole.version),
        ...fact("Running for", ago(whole.started)),
        ...Object.entries(whole.listeners).flatMap(([name, address]) => fact(`Listener ${name}`, el("code", { text: address }))),
        ...fact("ZooKeeper", badge(whole.zookeeper)),
        ...fact("Processes", processes),
      );
    }
  }
  return { element, heading, title: "Overview", update };
}

function sum(found, name) {
  const known = found.map((row) => row[name]).filter((value) => value !== null);
  return known.length ? known.reduce((a, b) => a + b, 0) : null;
}

const fact = (name, value) => [el("dt", { text: name }), el("dd", {}, value)];

/** A finding of the list of conditions. */
export function alertCard(alert) {
  return el("article", { class: `alert ${alert.level}` },
    el("h3", {}, el("span", { class: "level", text: alert.level }), " ", el("bdi", { text: alert.what })),
    alert.why ? el("p", {}, el("bdi", { text: alert.why })) : null,
    el("p", { class: "todo" }, ...inCode(alert.todo)));
}

/** Text with `commands` in backticks as code elements. */
export function inCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? el("code", { text: part }) : part));
}

function draw(line, area, peak) {
  const values = history.map((one) => one.bytes);
  const most = Math.max(1, ...values);
  const step = values.length > 1 ? 300 / (values.length - 1) : 300;
  const points = values.map((value, index) => `${(index * step).toFixed(1)},${(57 - (54 * value) / most).toFixed(1)}`);
  line.setAttribute("points", points.join(" "));
  area.setAttribute("points", points.length ? `0,60 ${points.join(" ")} 300,60` : "");
  setText(peak, values.length > 1 ? `at most ${size(Math.max(...values))}/s since ${new Date(history[0].at).toLocaleTimeString()}` : "Collecting…");
}
