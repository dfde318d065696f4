"""From speech to log-mel spectrograms and back, in numpy alone; HiFi-GAN needs PyTorch."""
