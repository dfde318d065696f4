// When to write, as in leapformer_fairseq/runtime/simul/policy.py: `write` is called after every step of source.

const waitK = ({ k, catch_up: rate }) => ({
  async write(draft) {
    while (draft.steps - Math.floor(draft.written.length / rate) >= k && (await draft.writeNext()));
  },
});

const offline = () => ({ async write() {} });

const holdN = ({ hold }) => ({
  async write(draft) {
    const tokens = await draft.continuation();
    await draft.commit(tokens.slice(0, Math.max(0, tokens.length - hold)));
  },
});

const localAgreement = ({ agree }) => {
  let drafts = []; // of the last steps, each from the first token that is not committed
  return {
    async write(draft) {
      drafts = [...drafts.slice(1 - agree), await draft.continuation()];
      if (drafts.length < agree) return;
      let count = 0;
      while (drafts.every((tokens) => count < tokens.length && tokens[count] === drafts[0][count])) count++;
      await draft.commit(drafts[0].slice(0, count));
      drafts = drafts.map((tokens) => tokens.slice(count));
    },
  };
};

export const POLICIES = { "wait-k": waitK, "hold-n": holdN, "local-agreement": localAgreement, offline };
