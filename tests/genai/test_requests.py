"""One model, a fresh generator for every request: memory stays flat and answers do not change."""

from __future__ import annotations

import gc

import psutil

from qwen_export.genai.check import pictures
from qwen_export.runtime.genai import new_tokens
from tests.genai.questions import conversation

MIX = ((), ((100, 160),), ((400, 300),), ((96, 160), (230, 120), (144, 144)), ((128, 128), (128, 128)), ((512, 500),))
REQUESTS, NEW_TOKENS = 60, 12
ALLOWED_GROWTH = 16 << 20
"""Bytes from the second round of the mix to the last; a leak of one request's pixels alone would be 100 MiB."""


def test_sixty_requests(feeder, model):
    process = psutil.Process()
    answers: dict[int, list[int]] = {}
    memory = []
    for number in range(REQUESTS):
        kind = number % len(MIX)
        prompt = feeder.prompt(conversation("what is red?", pictures(MIX[kind])))
        shortest = len(prompt.input_ids) + NEW_TOKENS
        made = feeder.generator(model, prompt, max_new_tokens=NEW_TOKENS, do_sample=False, min_length=shortest)
        tokens = list(new_tokens(made))
        assert len(tokens) == NEW_TOKENS
        assert answers.setdefault(kind, tokens) == tokens, f"request {number}"
        del made
        if kind == len(MIX) - 1:
            gc.collect()
            memory.append(process.memory_info().rss)
    assert max(memory[2:]) - memory[1] < ALLOWED_GROWTH, [size >> 20 for size in memory]
