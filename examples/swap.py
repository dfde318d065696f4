"""A stock fairseq transformer whose decoder self-attention becomes linear; everything else stays as it is.

python examples/swap.py
"""

from argparse import Namespace

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.tasks.translation import TranslationTask

from leapformer_fairseq.modules import fill_attention_args, swap_attention

words = Dictionary()
for word in ("the", "a", "house", "dog", "sees", "is"):
    words.add_symbol(word)
args = Namespace(encoder_layers=2, decoder_layers=2, encoder_embed_dim=64, share_all_embeddings=True)
base_architecture(args)
model = TransformerModel.build_model(args, TranslationTask(args, words, words))

args.decoder_self_attention = "leap"
fill_attention_args(args, plan="softmax")  # the blocks that were not planned, and every option's default
swap_attention(model.decoder, "decoder", args)

for layer in model.decoder.layers:
    print("self:", layer.self_attn.mechanism.name, " cross:", layer.encoder_attn.mechanism.name)
source, previous = torch.tensor([[4, 5, 6, 2]]), torch.tensor([[2, 4, 7]])
print("logits:", tuple(model(source, torch.tensor([4]), previous)[0].shape))
