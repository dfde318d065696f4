// Target tokens to text: only what no later token can change, as in leapformer_fairseq/runtime/simul/text.py.
const WORD_START = "\u2581"; // sentencepiece's mark of a space before the piece
const UNKNOWN = " \u2047 "; // what sentencepiece writes for an unknown piece
const BYTE = /^<0x([0-9A-F]{2})>$/;

/** The text of pieces, as sentencepiece decodes them. */
export function decode(pieces, unknown) {
  const bytes = [];
  const encoder = new TextEncoder();
  pieces.forEach((piece, i) => {
    const byte = BYTE.exec(piece);
    if (byte) bytes.push(parseInt(byte[1], 16));
    else if (piece === unknown) bytes.push(...encoder.encode(UNKNOWN));
    else bytes.push(...encoder.encode((i ? piece : piece.replace(WORD_START, "")).replaceAll(WORD_START, " ")));
  });
  return new TextDecoder().decode(new Uint8Array(bytes));
}

/** Hands out text as it becomes final: whole words, or with `unit` "char" every piece. */
export class Emitter {
  constructor(vocabulary, unit) {
    Object.assign(this, { vocabulary, unit });
    this.tokens = [];
    this.sent = 0; // tokens whose text was handed out
    this.sentLength = 0;
  }

  push(tokens) {
    this.tokens.push(...tokens);
  }

  /** Text since the last call; `final`: all that remains. */
  flush(final) {
    const end = final ? this.tokens.length : this.stableEnd();
    if (end <= this.sent) return "";
    const { symbols, unk } = this.vocabulary;
    const text = decode(this.tokens.slice(0, end).map((token) => symbols[token]), symbols[unk]);
    const suffix = text.slice(this.sentLength);
    this.sent = end;
    this.sentLength = text.length;
    return suffix.trim();
  }

  stableEnd() {
    const { symbols } = this.vocabulary;
    if (this.unit === "char") {
      let start = this.tokens.length;
      while (start > this.sent && BYTE.test(symbols[this.tokens[start - 1]])) start--;
      const run = this.tokens.slice(start).map((token) => symbols[token]);
      return decode(["", ...run]).includes("\ufffd") ? start : this.tokens.length;
    }
    for (let i = this.tokens.length - 1; i > this.sent; i--) {
      if (symbols[this.tokens[i]].startsWith(WORD_START)) return i;
    }
    return this.sent;
  }
}
