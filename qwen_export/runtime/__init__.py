"""Run a package: images and text in, an answer out. Needs numpy, Pillow, Transformers' tokenizer and ONNX Runtime.

Nothing in this room imports torch. Shape letters: B batch, S new tokens, P past tokens, T = P + S, D hidden, R patch
rows, F feature rows, M media.
"""
