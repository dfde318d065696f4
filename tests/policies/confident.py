"""Write while the model is sure."""

from leapformer_fairseq.runtime.simul import Draft, Option, Policy, register


@register("confident", Option("threshold", 0.8, "confident: a token less probable than this waits", least=0, most=1))
class Confident(Policy):
    """Write while the probability of the next token is above a threshold."""

    def write(self, draft: Draft) -> None:
        draft.write_while(lambda token: token.probability > self.chosen.threshold)
