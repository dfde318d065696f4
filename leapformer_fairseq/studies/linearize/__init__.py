"""From a trained softmax model to one with other attention: alignment, choice of the blocks, distillation."""
