// Audio on its way to the server. It is kept until its text is final, so that it can be sent again: after a lost
// connection what did not arrive, after a restart of the server what has no final text.

export const RATE = 16000;
const KEPT = 120 * RATE; // samples that the server has received and that have no final text, at most
const LONGEST = 30 * 60 * RATE; // samples that wait to be sent, at most
const PIECE = RATE / 10; // of what is loaded: not more than a server takes at once

export class Outbox {
  constructor() {
    this.restart();
  }

  /** Nothing is kept; the next sample is the first. */
  restart() {
    this.pieces = []; // { from, length, pcm, when }: samples, and when they were sent first
    this.end = 0; // samples recorded
    this.next = 0; // the first sample to be sent
    this.received = 0; // samples that the server is known to have
    this.earlier = 0; // samples that are known of an earlier page
  }

  /** Whether there is no room for more. */
  get full() {
    return this.end - this.next >= LONGEST;
  }

  /** 16-bit samples, in the order in which they were recorded. */
  add(pcm) {
    const length = pcm.byteLength / 2;
    this.pieces.push({ from: this.end, length, pcm, when: null });
    this.end += length;
  }

  /** What is to be sent next, or null. */
  take(now) {
    const piece = this.pieces[this.place(this.next)];
    if (!piece) return null;
    const skipped = Math.max(0, this.next - piece.from);
    this.next = piece.from + piece.length;
    piece.when ??= now;
    return skipped ? piece.pcm.slice(2 * skipped) : piece.pcm;
  }

  /** The server has received so many samples, and the text of the first `settled` is final. */
  settle(settled, received) {
    this.received = received;
    const done = Math.max(settled, received - KEPT);
    this.pieces.splice(0, this.place(Math.min(done, this.next)));
  }

  /** Begin again with this sample or, if it is not kept any more, the first that is. */
  rewind(sample) {
    if (!this.pieces.length) this.end = sample;
    this.next = Math.max(sample, this.pieces[0]?.from ?? this.end);
    return this.next;
  }

  /**
   * What a later page needs to send the rest, as JSON values: at most so many samples, from the first that is kept or,
   * if those are more, from the first that the server is not known to have.
   */
  saved(most) {
    const kept = this.pieces[0]?.from ?? this.end;
    const from = this.end - kept <= most ? kept : Math.max(kept, this.received);
    const bytes = new Uint8Array(2 * Math.min(most, this.end - from));
    for (const piece of this.pieces.slice(this.place(from))) {
      const start = Math.max(from, piece.from);
      const room = bytes.subarray(2 * (start - from));
      room.set(new Uint8Array(piece.pcm, 2 * (start - piece.from)).subarray(0, room.length));
    }
    let text = "";
    for (let at = 0; at < bytes.length; at += PIECE) text += String.fromCharCode(...bytes.subarray(at, at + PIECE));
    return { from, audio: btoa(text) };
  }

  /** Begin with what an earlier page has saved. */
  load({ from, audio }) {
    this.restart();
    this.end = this.next = from;
    const { buffer } = Uint8Array.from(atob(audio), (letter) => letter.charCodeAt(0));
    for (let at = 0; at < buffer.byteLength; at += 2 * PIECE) this.add(buffer.slice(at, at + 2 * PIECE));
    this.earlier = this.end;
  }

  /** Of earlier pages so many samples came: what this one has recorded follows them, or what it has loaded. */
  follow(samples) {
    const by = samples - this.earlier;
    if (by <= 0) return;
    this.pieces = this.pieces.filter((piece) => piece.from >= this.earlier);
    for (const piece of this.pieces) piece.from += by;
    this.end += by;
    this.next += by;
  }

  /** When a sample was sent first; null if that is not known. */
  sentAt(sample) {
    return this.pieces[this.place(sample - 1)]?.when ?? null;
  }

  /** Which piece holds a sample; how many there are if it is a later one. */
  place(sample) {
    let [low, high] = [0, this.pieces.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      const { from, length } = this.pieces[middle];
      if (from + length > sample) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}
