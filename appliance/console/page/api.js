// Calls the server.  Every failure is an Error whose message can be shown to a person.

let csrf = "";

export function setCsrf(token) {
  csrf = token || "";
}

/** The answer, if it is one of success. */
async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The console does not answer. Is the appliance running?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const failure = new Error(body.error || `The console answers with status ${response.status}.`);
  failure.status = response.status;
  throw failure;
}

const call = async (path, options) => (await ask(path, options)).json().catch(() => ({}));

function address(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  return text ? `${path}?${text}` : path;
}

export const get = (path, query = {}, signal = undefined) => call(address(path, query), { signal });

/** A file that the server makes: {blob, messages, complete}. */
export async function download(path, query, signal) {
  const response = await ask(address(path, query), { signal });
  return { blob: await response.blob(), messages: Number(response.headers.get("x-messages")), complete: !response.headers.get("x-cursor") };
}

export function post(path, body, signal = undefined) {
  const headers = { "content-type": "application/json", "x-csrf-token": csrf };
  return call(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}
