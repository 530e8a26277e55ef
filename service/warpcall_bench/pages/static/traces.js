// Opens a trace in the viewer that the operator has set, by default ui.perfetto.dev. The browser reads the
// trace from this server and hands it over to the tab of the viewer, which asks no server for it.
"use strict";

const ASK_MS = 50; // between two questions whether the viewer is ready
const WAIT_MS = 30000; // for its answer

for (const button of document.querySelectorAll("button[data-trace]")) {
  button.hidden = false;
  button.addEventListener("click", () => openTrace(button));
}

async function openTrace(button) {
  const said = button.nextElementSibling;
  const { trace, viewer, title } = button.dataset;
  const origin = new URL(viewer).origin;
  said.textContent = "";
  const tab = window.open(viewer); // before anything is awaited: browsers block it otherwise
  if (!tab) {
    said.textContent = "The browser has blocked the new tab: allow it, or download the trace.";
    return;
  }
  let buffer;
  try {
    const answer = await fetch(trace);
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    buffer = await answer.arrayBuffer();
  } catch {
    tab.close();
    said.textContent = "The trace cannot be read: it was deleted, or is on another server.";
    return;
  }
  if (await answers(tab, origin)) {
    tab.postMessage({ perfetto: { buffer, title, fileName: button.dataset.name } }, origin);
  } else {
    said.textContent = `${origin} does not answer. Download the trace, and open the file in a viewer.`;
  }
}

// Whether the viewer in a tab says that it listens: it answers PING with PONG.
function answers(tab, origin) {
  return new Promise((resolve) => {
    const until = performance.now() + WAIT_MS;
    const asking = setInterval(() => {
      if (tab.closed || performance.now() > until) done(false);
      else tab.postMessage("PING", "*"); // it says nothing, and the tab may still be empty
    }, ASK_MS);
    const onMessage = (event) => {
      if (event.source === tab && event.origin === origin && event.data === "PONG") done(true);
    };
    const done = (ready) => {
      clearInterval(asking);
      window.removeEventListener("message", onMessage);
      resolve(ready);
    };
    window.addEventListener("message", onMessage);
  });
}
