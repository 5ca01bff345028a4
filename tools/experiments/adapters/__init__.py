"""Which posterior of an adapter is worth its gradients: LoRA on few labels; goes with docs/how-to/adapters.md."""
