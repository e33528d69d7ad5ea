// Requests to the server that this page came from: addresses, the API key, errors in words.

const KEY = "palladio.key"; // in sessionStorage: kept for this tab, gone with it
const base = new URL(".", document.baseURI);

let keyInMemory = null; // where the browser has no sessionStorage
let asking = null; // one question for the key at a time
let askUser = async () => null;

/** Where a route is: below the page's own address, so that a prefix of a proxy stays. */
export const address = (path) => new URL(path.replace(/^\/+/, ""), base);

export class ApiError extends Error {
  /**
   * @param {string} message for the user
   * @param {number} status of HTTP; 0: there was no answer
   */
  constructor(message, status = 0, code = null, param = null) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.param = param;
  }

  /** Whether the engine is starting, restarting or gone for a moment. */
  get isTemporary() {
    return this.status === 0 || (this.status === 503 && this.code !== "overloaded") || this.status === 502;
  }
}

export function apiKey() {
  try {
    return sessionStorage.getItem(KEY) ?? keyInMemory;
  } catch {
    return keyInMemory;
  }
}

export function setApiKey(key) {
  keyInMemory = key;
  try {
    if (key === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, key);
  } catch {
    // this tab alone remembers it, until it is reloaded
  }
}

/** @param {(wasWrong: boolean) => Promise<string|null>} ask how the page asks for the key; null: the user will not say */
export function onKeyNeeded(ask) {
  askUser = ask;
}

/** The key that the user gives; all requests that wait share the question. Null: none. */
function newKey(used) {
  if (apiKey() !== used) return Promise.resolve(apiKey()); // somebody else has asked meanwhile
  asking ??= askUser(used !== null)
    .then((key) => {
      if (key !== null) setApiKey(key);
      return key;
    })
    .finally(() => {
      asking = null;
    });
  return asking;
}

const WORDS = {
  400: "The server did not accept the request.",
  401: "The API key is missing or wrong.",
  403: "The server does not allow this.",
  404: "The server does not have this.",
  408: "The request took too long to arrive.",
  413: "The request is too large.",
  429: "Too many requests; try again in a moment.",
  502: "The server behind the proxy does not answer.",
  503: "The server is not ready; try again in a moment.",
  504: "The request took too long.",
};

/** The error that a body tells of: OpenAI's form, or FastAPI's, or none that is known. */
export function errorOf(status, body) {
  const error = body?.error;
  const said = typeof error === "string" ? error : error?.message ?? body?.detail ?? body?.message;
  const message = typeof said === "string" && said.trim() ? sentence(said) : WORDS[status] ?? `The server answered with status ${status}.`;
  return new ApiError(message, status, error?.code ?? null, error?.param ?? null);
}

function sentence(text) {
  const trimmed = text.trim().slice(0, 2000);
  const begun = /^[a-z]+[ ,:]/.test(trimmed) ? trimmed[0].toUpperCase() + trimmed.slice(1) : trimmed; // not the name of a field
  return /[.!?…:]$/.test(begun) ? begun : `${begun}.`;
}

/**
 * The answer to a request; asks for the key where the server wants one.
 * @param {string} path below the server's root
 * @param {{method?: string, json?: any, signal?: AbortSignal}} options
 * @throws {ApiError} for every status but 2xx, and where nothing answers
 * @throws {DOMException} AbortError
 */
export async function request(path, { method = "GET", json, signal } = {}) {
  for (;;) {
    const key = apiKey();
    const headers = { Accept: "application/json, text/event-stream" };
    if (key !== null) headers.Authorization = `Bearer ${key}`;
    if (json !== undefined) headers["Content-Type"] = "application/json";
    let answer;
    try {
      const body = json === undefined ? undefined : JSON.stringify(json);
      answer = await fetch(address(path), { method, headers, body, signal, cache: "no-store", credentials: "same-origin" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      if (error instanceof TypeError && /ISO-8859-1|ByteString|header/i.test(error.message)) {
        throw new ApiError("The API key has characters that HTTP cannot carry.", 401);
      }
      throw new ApiError(`No answer from ${base.host}: the server is not running, or this device is offline.`);
    }
    if (answer.ok) return answer;
    const error = errorOf(answer.status, await answer.json().catch(() => null));
    if (answer.status !== 401 || (await newKey(key)) === null) throw error;
  }
}

/** As `request`, and the JSON of the answer. */
export async function ask(path, options = {}) {
  const answer = await request(path, options);
  return answer.json();
}
