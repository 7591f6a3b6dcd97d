// Calls the server.  Every failure is an Error whose message can be shown to a person.

let csrf = "";

export function setCsrf(token) {
  csrf = token || "";
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The console does not answer. Is the appliance running?");
  }
  let body = null;
  try {
    body = await response.json();
  } catch {
    body = {};
  }
  if (response.ok) return body;
  const failure = new Error(body.error || `The console answers with status ${response.status}.`);
  failure.status = response.status;
  throw failure;
}

export function get(path, query = {}, signal = undefined) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  return call(text ? `${path}?${text}` : path, { signal });
}

export function post(path, body) {
  const headers = { "content-type": "application/json", "x-csrf-token": csrf };
  return call(path, { method: "POST", headers, body: JSON.stringify(body) });
}
