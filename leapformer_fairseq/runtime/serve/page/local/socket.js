// A translator in this page that is spoken to as if it were a server at the end of a WebSocket.

export class LocalSocket {
  constructor() {
    this.readyState = WebSocket.CONNECTING;
    this.worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    this.worker.onmessage = ({ data }) => {
      if (data.ready) {
        this.readyState = WebSocket.OPEN;
        this.onopen();
      } else {
        this.onmessage({ data: JSON.stringify(data) });
      }
    };
    const error = "the translator cannot be loaded; see the console";
    this.worker.onerror = () => this.onmessage({ data: JSON.stringify({ error }) });
  }

  /** JSON, or 16-bit samples. */
  send(message) {
    this.worker.postMessage(typeof message === "string" ? JSON.parse(message) : message);
  }
}
