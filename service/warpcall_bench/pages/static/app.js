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
