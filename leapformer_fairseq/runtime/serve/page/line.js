// A speaker's line to the server: every sample arrives once, in order, however often the connection is lost.

import { Outbox, RATE } from "./outbox.js";

const BUFFERED = 1 << 20; // bytes that may wait in the browser
const SAVED = 100 * RATE; // samples that outlive the page: browsers keep 5 MB of text, and that of the talk is among it
// ms; quiet: so long without an answer to audio, or without anything for a listener, a connection is dead
export const TIMES = { retry: [500, 1000, 2000, 5000], quiet: 15000 };

export class Line {
  /**
   * open() makes a socket; store keeps the key of the talk, { get(), set(key), remove() }, and what a page leaves to the
   * next one, { left(), leave(value) }; greeting() is what is said first, null where nobody would hear it.
   * told: { listens, wanted(), opened(), message(message), waits(ms), full() }.
   */
  constructor(open, store, greeting, told, times = TIMES) {
    Object.assign(this, { open, store, greeting, told, times });
    this.box = new Outbox();
    this.socket = null;
    this.attempts = 0;
    this.ready = false; // whether it is known from where the server wants the audio
    this.stopping = false; // whether there is no more audio
    this.reloaded = Boolean(store.get()); // whether an earlier page has sent audio of the talk
    this.asked = 0; // when something was sent last that the server answers
    this.answered = 0; // when the server was heard last
    this.turn = 0; // the number of the last connection, also of earlier pages
    const left = this.reloaded && store.left();
    if (!left) return;
    this.box.load(left);
    this.stopping = left.stopping;
    this.turn = left.turn;
  }

  /** Whether there is more than outlives the page. */
  get leaves() {
    return Boolean(this.store.get()) && this.box.end - this.box.received > SAVED;
  }

  /** The page ends: leave to the next one what is not sent, or so much of it that there is room for. */
  leave() {
    this.store.leave(null);
    for (let most = SAVED; this.store.get() && most > RATE; most /= 2) {
      try {
        return this.store.leave({ ...this.box.saved(most), stopping: this.stopping, turn: this.turn });
      } catch {} // there is less room
    }
  }

  get up() {
    return this.socket?.readyState === 1;
  }

  connect() {
    if (this.greeting()) this.named();
    const socket = this.open();
    this.socket = socket;
    this.answered = performance.now();
    this.watch ??= setInterval(() => this.look(), this.times.quiet / 3);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      if (this.socket === socket) this.opened();
    };
    socket.onmessage = (event) => {
      this.answered = performance.now();
      if (this.socket === socket) this.received(JSON.parse(event.data));
    };
    socket.onclose = socket.onerror = () => {
      if (this.socket === socket) this.lost();
    };
  }

  /** A connection may be lost without anybody saying so. */
  look() {
    const waits = !this.up || this.stopping || this.told.listens || this.asked > this.answered;
    if (!this.socket || !waits || performance.now() - this.answered < this.times.quiet) return;
    const gone = this.socket;
    this.lost();
    gone.close?.();
  }

  opened() {
    this.begin();
    this.told.opened();
  }

  /** Go on with the talk or, if there is none, begin one, under a key that only this page and the server know. */
  begin() {
    const greeting = this.greeting();
    this.ready = !greeting; // a translator in this page keeps no talks
    if (!greeting) return this.pump();
    this.turn = Math.max(Date.now(), this.turn + 1); // clocks may be set back
    this.say({ ...greeting, talk: this.named(), begin: true, turn: this.turn });
    this.asked = performance.now();
  }

  /** The key of the talk; a new one if it has none. */
  named() {
    if (!this.store.get()) this.store.set(`${random(32)}.${random(32)}`);
    return this.store.get();
  }

  received(message) {
    if (message.heard_s > 0 || this.told.listens) this.attempts = 0; // not where a server only says why it will not
    if (message.error?.startsWith("there is no such talk") && !this.told.listens) this.store.remove(); // begin another
    if (message.talk) {
      if (this.reloaded) this.box.follow(message.received);
      this.reloaded = false;
      this.say({ from: this.box.rewind(message.received) });
      this.ready = true;
    }
    this.told.message(message);
    if (message.settled !== undefined) this.box.settle(message.settled, message.received);
    if (message.end_of_processing) {
      this.stopping = false;
      this.store.remove();
    }
    this.pump();
  }

  lost() {
    this.socket = null;
    this.ready = false;
    if (!this.told.wanted()) return;
    const wait = this.times.retry[Math.min(this.attempts++, this.times.retry.length - 1)];
    this.told.waits(wait);
    setTimeout(() => this.socket || this.connect(), wait);
  }

  say(message) {
    if (this.up) this.socket.send(JSON.stringify(message));
  }

  /** 16-bit samples. */
  add(pcm) {
    this.box.add(pcm);
    if (this.box.full) this.told.full();
    this.pump();
  }

  /** There is no more audio; what waits is sent first. */
  stop() {
    this.stopping = true;
    this.pump();
  }

  /** Another talk begins. */
  restart() {
    this.box.restart();
    this.stopping = this.reloaded = false;
    this.store.remove();
    if (this.up) {
      this.begin();
    }
  }

  /** Send what waits, in order. */
  pump() {
    if (!this.ready || !this.up) return;
    const room = () => (this.socket.bufferedAmount ?? 0) < BUFFERED; // more is sent when the server has answered
    while (room()) {
      const pcm = this.box.take(performance.now());
      if (!pcm) break;
      this.socket.send(pcm);
      this.asked = performance.now();
    }
    if (!this.stopping || this.box.next < this.box.end) return;
    this.say({ end_of_stream: true });
    this.ready = false; // nothing follows
  }
}

function random(digits) {
  const bytes = crypto.getRandomValues(new Uint8Array(digits / 2));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
