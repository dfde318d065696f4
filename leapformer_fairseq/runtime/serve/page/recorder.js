// Collects the microphone's samples into pieces of 80 ms, as 16-bit integers, with their level in decibels.
const PIECE = 1280;

class Recorder extends AudioWorkletProcessor {
  constructor() {
    super();
    this.piece = new Int16Array(PIECE);
    this.filled = 0;
    this.power = 0;
  }

  process(inputs) {
    const channels = inputs[0];
    if (!channels.length) return true;
    for (let i = 0; i < channels[0].length; i++) {
      let sample = 0;
      for (const channel of channels) sample += channel[i] / channels.length;
      this.piece[this.filled++] = Math.max(-32768, Math.min(32767, Math.round(sample * 32768)));
      this.power += sample * sample;
      if (this.filled === PIECE) {
        const level = 10 * Math.log10(this.power / PIECE + 1e-10);
        this.port.postMessage({ pcm: this.piece.buffer, level }, [this.piece.buffer]);
        this.piece = new Int16Array(PIECE);
        this.filled = this.power = 0;
      }
    }
    return true;
  }
}

registerProcessor("recorder", Recorder);
