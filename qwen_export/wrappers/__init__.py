"""Wrappers: nn.Modules that give each component its flat inputs and outputs, built around upstream's modules."""
