// What pages do besides showing what the server has sent. Without it they show the same, once.
"use strict";

// Parts with data-refresh ask for themselves again, every so many milliseconds, while they are seen.
function refreshAll() {
  for (const part of document.querySelectorAll("[data-refresh]")) {
    const due = Number(part.dataset.due || 0);
    if (!document.hidden && Date.now() >= due) {
      part.dataset.due = Date.now() + Number(part.dataset.refresh);
      htmx.trigger(part, "refresh");
    }
  }
}
setInterval(refreshAll, 500);

// A part with data-events follows a stream of events, and asks for itself when something happened,
// at most once a second.
let stream = null;
let asked = 0;
let waiting = 0;

function changed() {
  if (waiting) return;
  waiting = setTimeout(() => {
    waiting = 0;
    asked = Date.now();
    const part = document.querySelector("[data-events]");
    if (part) htmx.trigger(part, "refresh");
  }, Math.max(0, 1000 - (Date.now() - asked)));
}

function follow() {
  const part = document.querySelector("[data-events]");
  if (!part) {
    if (stream) {
      stream.close();
      stream = null;
    }
    return;
  }
  if (stream) return;
  stream = new EventSource(part.dataset.events);
  for (const kind of ["state", "case", "progress"]) stream.addEventListener(kind, changed);
}

// Selects of filters are sent when they change; the button is for browsers without scripts.
document.addEventListener("change", (event) => {
  const form = event.target.closest("form.filter");
  if (form && event.target.tagName === "SELECT") form.requestSubmit();
});

// Forms with data-live filter tables. They are sent by themselves while a reader types: the page that
// answers replaces the tables of this one, and the address keeps what was typed.
const PAUSE_MS = 150; // without a key
let typed = 0;
let pending = null;

async function filterNow(form) {
  pending?.abort();
  pending = new AbortController();
  const url = new URL(location);
  url.hash = "";
  for (const [name, value] of new FormData(form)) url.searchParams.set(name, value);
  for (const [name, value] of [...url.searchParams]) if (!value) url.searchParams.delete(name);
  url.searchParams.delete("before");
  const { signal } = pending;
  try {
    const answer = await fetch(url, { headers: { accept: "text/html" }, signal });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!answer.ok || signal.aborted) return;
    const ticked = [...document.querySelectorAll("[id^=list] input:checked")].map((one) => one.value);
    for (const list of document.querySelectorAll("[id^=list]")) {
      const found = page.getElementById(list.id);
      if (found) list.replaceWith(found);
    }
    for (const one of document.querySelectorAll("[id^=list] input[type=checkbox]")) one.checked = ticked.includes(one.value);
    history.replaceState(null, "", url);
  } catch (error) {
    if (error.name !== "AbortError") throw error;
  }
}

document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-live]");
  if (!form || event.target.tagName === "SELECT") return;
  clearTimeout(typed);
  typed = setTimeout(filterNow, PAUSE_MS, form);
});

// The title of a time is in the reader's time zone. It is written when the cursor reaches the time:
// a browser needs some 20 ms for the first one, which would delay the first paint of the page.
document.addEventListener("pointerover", (event) => {
  const time = event.target.closest("time[datetime]");
  if (time) time.title = new Date(time.dateTime).toLocaleString();
});

// Addresses to be copied are shown as the browser sees them, with the path prefix of a proxy.
function wholeAddresses() {
  for (const link of document.querySelectorAll("a[data-address]")) link.textContent = link.href;
}

// Commands get a button that copies them. A page over plain HTTP has no clipboard, but may copy what is
// selected, also in browsers that call this outdated.
function addCopyButtons() {
  for (const part of document.querySelectorAll(".command")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const code = part.querySelector("code");
      getSelection().selectAllChildren(code);
      if (navigator.clipboard) await navigator.clipboard.writeText(code.textContent);
      else document.execCommand("copy");
      button.textContent = "Copied";
    });
    part.append(button);
  }
}

document.addEventListener("DOMContentLoaded", () => {
  wholeAddresses();
  addCopyButtons();
  follow();
});
// What a reader has opened stays open when its part of the page is replaced.
let open = [];
document.addEventListener("htmx:beforeSwap", () => {
  open = [...document.querySelectorAll("details[id][open]")].map((one) => one.id);
});
document.addEventListener("htmx:afterSwap", () => {
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
});

document.addEventListener("htmx:afterSettle", follow);
