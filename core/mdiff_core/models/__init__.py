"""The network of MinerU-Diffusion in plain PyTorch: image tower, projector, SDAR decoder."""
