"""From speech to log-mel spectrograms and back, in PyTorch alone."""
