// The sampled state as it comes, and whether it still comes.

const SILENT_MS = 20_000; // a look may wait ten seconds for a server that hangs: nothing comes meanwhile
const RETRY_MS = 2000;

/**
 * Follow the state until the page is closed. `onState` gets each document, `onConnection` gets null while the state
 * comes, and the time of the last one (ms) once it doesn't.
 */
export function follow(address, { onState, onConnection }) {
  let source = null;
  let heardMs = Date.now();
  let isLost = false;

  function lose() {
    if (!isLost) onConnection(heardMs);
    isLost = true;
  }

  function open() {
    source?.close();
    source = new EventSource(address);
    source.addEventListener("state", (event) => {
      heardMs = Date.now();
      if (isLost) onConnection(null);
      isLost = false;
      onState(JSON.parse(event.data));
    });
    source.addEventListener("error", () => {
      lose();
      if (source.readyState === EventSource.CLOSED) setTimeout(open, RETRY_MS); // the browser has given it up
    });
  }

  open();
  setInterval(() => {
    if (Date.now() - heardMs <= SILENT_MS) return;
    lose();
    if (document.visibilityState === "visible") open();
  }, SILENT_MS);
}
