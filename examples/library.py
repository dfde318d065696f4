"""Linear attention without fairseq's models: whole sequences, then the same token by token in constant memory.

python examples/library.py
"""

import torch

from leapformer_fairseq.attention import CAUSAL, TokenInfo, build

leap = build("leap", head_dim=32, num_heads=8)
q, k, v = (torch.randn(1, 8, 1000, 32) for _ in range(3))
out = leap(q, k, v, mask=CAUSAL)  # time and memory linear in 1,000; gradients, too

state = leap.init_state(1, 32, k, mask=CAUSAL)
tokens = TokenInfo.whole(1000)
with torch.no_grad():
    for t in range(1000):
        one, here = slice(t, t + 1), tokens.narrow(t, t + 1)
        step, state = leap.scan(state, q[:, :, one], k[:, :, one], v[:, :, one], here, here)
difference = float((step - out[:, :, -1:]).abs().max().detach())
size = sum(x.numel() * x.element_size() for x in state.tensors().values())
print(f"after 1,000 tokens: state {size:,} bytes, difference to the whole sequence {difference:.1e}")
