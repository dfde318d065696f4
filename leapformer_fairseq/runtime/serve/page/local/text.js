// Target tokens to text: only what no later token can change, as in leapformer_fairseq/runtime/simul/text.py.
const WORD_START = "\u2581"; // sentencepiece's mark of a space before the piece
const UNKNOWN = " \u2047 "; // what sentencepiece writes for an unknown piece
const BYTE = /^<0x([0-9A-F]{2})>$/;

/** Target ids to text, as sentencepiece decodes their pieces. */
export class Detokenizer {
  /** `vocabulary`: that of model.json. */
  constructor({ symbols, unk }) {
    Object.assign(this, { symbols, unknown: symbols[unk] });
  }

  piece(token) {
    return this.symbols[token];
  }

  decode(tokens) {
    const [bytes, encoder] = [[], new TextEncoder()];
    tokens.map((token) => this.piece(token)).forEach((piece, i) => {
      const byte = BYTE.exec(piece);
      if (byte) bytes.push(parseInt(byte[1], 16));
      else if (piece === this.unknown) bytes.push(...encoder.encode(UNKNOWN));
      else bytes.push(...encoder.encode((i ? piece : piece.replace(WORD_START, "")).replaceAll(WORD_START, " ")));
    });
    return new TextDecoder().decode(new Uint8Array(bytes));
  }
}

/** Emits whole words: a word is complete when the next piece starts a new one, or at the end. */
class WordEmitter {
  constructor(detokenizer) {
    this.detokenizer = detokenizer;
    this.tokens = [];
    this.nSent = 0; // tokens whose text was handed out
    this.sentChars = 0;
  }

  push(tokens) {
    this.tokens.push(...tokens);
  }

  /** The indices of the tokens at which a word begins. */
  starts() {
    return [...this.tokens.keys()].filter((i) => !i || this.begins(i));
  }

  /** Drop the first tokens up to the start of a word whose text was emitted; later text is unaffected. */
  forget(count) {
    [this.tokens, this.nSent] = [this.tokens.slice(count), this.nSent - count];
    this.sentChars = this.detokenizer.decode(this.tokens.slice(0, this.nSent)).length;
  }

  /** Text that has become final since the last call, without outer spaces; with `final`, all remaining text. */
  flush(final) {
    const end = final ? this.tokens.length : this.stableEnd();
    if (end <= this.nSent) return "";
    const text = this.detokenizer.decode(this.tokens.slice(0, end));
    const suffix = text.slice(this.sentChars);
    [this.nSent, this.sentChars] = [end, text.length];
    return suffix.trim();
  }

  stableEnd() {
    for (let i = this.tokens.length - 1; i > this.nSent; i--) if (this.begins(i)) return i;
    return this.nSent;
  }

  begins(index) {
    return this.detokenizer.piece(this.tokens[index]).startsWith(WORD_START);
  }
}

/** Emits every piece at once; only the bytes of an unfinished character are held back. */
class CharEmitter extends WordEmitter {
  stableEnd() {
    let start = this.tokens.length;
    while (start > this.nSent && this.byte(start - 1) !== null) start--;
    const run = this.tokens.slice(start).map((_, i) => this.byte(start + i));
    try {
      new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(run));
    } catch {
      return start;
    }
    return this.tokens.length;
  }

  /** Every piece, but for bytes behind others. */
  begins(index) {
    return this.byte(index - 1) === null || this.byte(index) === null;
  }

  /** The value of a byte-fallback piece such as <0xE4>, null for any other piece. */
  byte(index) {
    const byte = BYTE.exec(this.detokenizer.piece(this.tokens[index]));
    return byte && parseInt(byte[1], 16);
  }
}

export const EMITTERS = { word: WordEmitter, char: CharEmitter };
