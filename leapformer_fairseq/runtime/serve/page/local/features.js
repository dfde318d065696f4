// Model input from arriving audio, as in leapformer_fairseq/runtime/simul/features.py.

/** The frames of one utterance while its audio arrives, normalised, in steps of `stepFrames` frames (10 ms each). */
export class FeatureStream {
  /** `fbank`: what makes frames of samples; `cmvn`: { mean, std } of each bin, or null. */
  constructor(stepFrames, fbank, cmvn) {
    Object.assign(this, { stepFrames, fbank, cmvn });
    this.pending = [];
  }

  /** Add samples in [-1, 1] at 16 kHz. */
  async push(samples) {
    const { mean, std } = this.cmvn ?? {};
    for (const frame of await this.fbank.push(samples)) {
      this.pending.push(mean ? frame.map((level, bin) => (level - mean[bin]) / std[bin]) : frame);
    }
  }

  /** Frames of the next step, or null while it is incomplete; `final`: the audio has ended, the last may be shorter. */
  nextStep(final) {
    if (this.pending.length < this.stepFrames && !(final && this.pending.length)) return null;
    return this.pending.splice(0, this.stepFrames);
  }
}
