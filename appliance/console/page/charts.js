// Draws points of the last hours as lines, with their times, their highest value, and the last one in words.

import { get } from "./api.js";
import { el, moment, setText, svg } from "./dom.js";

const WIDTH = 600;
const HEIGHT = 100;
const POLL_MS = 5_000;
const DAY_MS = 86_400_000;

/** One chart.  `show` makes text of a value; a value that is not known is a gap in the line. */
export function chart(label, show) {
  const line = svg("path", { class: "line", "vector-effect": "non-scaling-stroke" });
  const area = svg("path", { class: "area" });
  const drawing = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, area, line);
  const highest = el("p", { class: "note" });
  const begin = el("span");
  const end = el("span");
  const times = el("p", { class: "note times", hidden: true }, begin, end);
  const element = el("section", { class: "card" }, el("h2", { text: label }), drawing, times, highest);
  const update = (times_ms, values) => {
    const known = values.filter((value) => value !== null);
    times.hidden = known.length === 0;
    if (known.length === 0) {
      line.setAttribute("d", "");
      area.setAttribute("d", "");
      drawing.setAttribute("aria-label", `${label}: nothing is known yet`);
      return;
    }
    const top = Math.max(...known);
    const first = times_ms[0];
    const span = Math.max(1, times_ms.at(-1) - first);
    const clock = (ms) => moment(ms).slice(span > DAY_MS ? 0 : 11, 16);
    const place = (index) => [((WIDTH * (times_ms[index] - first)) / span).toFixed(1), (HEIGHT - 3 - (HEIGHT - 6) * (values[index] / (top || 1))).toFixed(1)];
    const pieces = runs(values).map((run) => run.map(place));
    line.setAttribute("d", pieces.map((piece) => path(piece.length > 1 ? piece : [...piece, piece[0]])).join(""));
    area.setAttribute("d", pieces.map((piece) => `${path(piece)}L${piece.at(-1)[0]},${HEIGHT}L${piece[0][0]},${HEIGHT}Z`).join(""));
    setText(begin, clock(first));
    setText(end, clock(times_ms.at(-1)));
    const last = values.at(-1);
    const text = `at most ${show(top)}, ${last === null ? "now not known" : `now ${show(last)}`}`;
    setText(highest, text);
    drawing.setAttribute("aria-label", `${label} from ${clock(first)} to ${clock(times_ms.at(-1))}: ${text}`);
  };
  return { element, update };
}

const path = (points) => `M${points.map((point) => point.join(",")).join("L")}`;

/** The indexes of values that are known and follow each other. */
function runs(values) {
  const found = [];
  values.forEach((value, index) => {
    if (value === null) return;
    if (index === 0 || values[index - 1] === null) found.push([]);
    found.at(-1).push(index);
  });
  return found;
}

/** Charts of a topic or a group: `asked` names it, `kinds` are [name, label, show]. */
export function charts(asked, kinds) {
  const drawn = kinds.map(([name, label, show]) => [name, chart(label, show)]);
  const note = el("p", { class: "note", text: "Collecting…" });
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const ended = new AbortController();
  let timer = 0;
  async function turn() {
    try {
      const points = await get("api/history", asked, ended.signal);
      for (const [name, one] of drawn) one.update(points.at_ms, points[name]);
      setText(note, told(points.at_ms, points[kinds[0][0]]));
      problem.hidden = true;
    } catch (error) {
      if (error.name === "AbortError") return;
      setText(problem, error.message);
      problem.hidden = false;
    }
    if (!ended.signal.aborted) timer = setTimeout(turn, POLL_MS);
  }
  turn();
  const close = () => {
    clearTimeout(timer);
    ended.abort();
  };
  return { element: el("div", { class: "charts" }, ...drawn.map(([, one]) => one.element), note, problem), close };
}

function told(times, values) {
  if (times.length === 0) return "The first points come when the console has run for two minutes.";
  if (values.every((value) => value === null)) return "Nothing is known yet: a minute or two pass before the first point. Or there are too many to keep them all.";
  return `${times.length} points since ${moment(times[0]).slice(0, 16)}, from the console's memory: they begin anew when it does.`;
}
