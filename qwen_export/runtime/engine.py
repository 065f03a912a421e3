"""The engine: prompts in, last logits and carried states out, one slice at a time.

Order of calls for one slice: embedding(ids, features of its placeholders) -> decoder(embeddings, mask, positions,
states) -> logits and new states. Only ids, features and positions go in and last logits come out; embeddings and states
stay on the device. Slicing does not change the answer, so memory does not grow with the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qwen_export.contract import EMBEDDING, TEXT, states
from qwen_export.errors import InputError, UsageError
from qwen_export.package import Package
from qwen_export.runtime.decode_step import DecodeStep
from qwen_export.runtime.graphs import Graphs
from qwen_export.runtime.memory import MemoryModel, check_decoder, free_memory
from qwen_export.runtime.positions import rope_positions, text_positions
from qwen_export.runtime.preprocess import IMAGE, VIDEO
from qwen_export.runtime.prompt import Prompt
from qwen_export.runtime.session import Device
from qwen_export.runtime.state import State, empty_state, to_numpy
from qwen_export.runtime.vision import encode_media


class Engine:
    """Runs one package on one device."""

    def __init__(self, package: Package, device: Device | None = None, threads: int | None = None) -> None:
        self.graphs = Graphs(package, device, threads)
        self.config, self.recipe = package.config, package.recipe
        self._specs = states(self.config.text, self.recipe.tensor_dtype, max_length=self.recipe.static_length)
        self._memory = MemoryModel(self.config, self.recipe, self.graphs.device)
        self._decode_step = DecodeStep(self.graphs, self._specs) if package.decode_graph else None
        self._media_ids = [self.config.image_token_id, self.config.video_token_id] if self.config.vision else []
        self.num_steps = 0
        """Decoder runs so far: a static state is as it was before a failure only if this is."""

    def empty_state(self, batch: int = 1) -> State:
        """States of rows that have seen nothing."""
        if self._decode_step and batch == 1:
            # one conversation at a time has the buffers of the single-token graph; others decode without it
            state = self._decode_step.empty_state()
            if state is not None:
                return state
        return empty_state(self._specs, batch, self.graphs.device)

    def prefill(
        self,
        prompts: Sequence[Prompt],
        state: State | None = None,
        slice_size: int | None = None,
        new_tokens: int = 0,
    ) -> tuple[np.ndarray, State]:
        """Read prompts into the states: new rows (padded on the left as needed), or a further turn of old ones.

        Args:
            slice_size: tokens fed at a time; default the recipe's `prefill_slice`.
            new_tokens: tokens to be decoded afterwards; a request that outgrows the model is refused before any work.

        Returns:
            logits of the last token, float32 [B, V], and the new state.
        """
        state = state or self.empty_state(len(prompts))
        ids, mask = self._rows(prompts, state)
        media = [item for prompt in prompts for item in prompt.media]
        grids = {k: np.concatenate([p.grids(k) for p in prompts]) for k in (IMAGE, VIDEO)}
        positions, following = rope_positions(
            ids, self.config, image_grids=grids[IMAGE], video_grids=grids[VIDEO], mask=mask, start=state.next_position
        )
        # Sizes are checked before the vision graph runs: what is refused should be refused at once.
        self._check_room(state.length + ids.shape[1], int(following.max()), new_tokens)
        # a slice of one token takes the decode branch, which looks at no padding; left padding makes a last one real
        size = max(slice_size or self.recipe.prefill_slice, 1 if mask.all() else 2)
        size = min(size, ids.shape[1])
        self._check_memory(len(prompts), size, state.length + ids.shape[1] - size, padded=not mask.all())
        features = encode_media(self.graphs, media)
        chosen = _FeatureSlices(np.isin(ids, self._media_ids), features)
        logits: Any = None
        for start in range(0, ids.shape[1], size):
            part = slice(start, min(start + size, ids.shape[1]))
            logits, state = self.step(
                ids[:, part],
                state,
                mask=mask[:, part],
                positions=positions[:, :, part],
                features=chosen.take(part),
                want_logits=part.stop == ids.shape[1],
                shrink=ids.shape[1] > 1,
            )
        return logits[:, -1].astype(np.float32), replace(state, next_position=following)

    def decode(self, tokens: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """One token for every row, int64 [B]: logits float32 [B, V] and the new state."""
        self._check_room(state.length + 1, int(state.next_position.max()) + 1, 0)
        if self._decode_step and self._decode_step.serves(state) and state.mask.all():
            return self._decode_in_place(self._decode_step, tokens[:, None], state)
        logits, state = self.step(tokens[:, None], state)
        return logits[:, -1].astype(np.float32), state

    def step(
        self,
        ids: np.ndarray,
        state: State,
        *,
        mask: np.ndarray | None = None,
        positions: np.ndarray | None = None,
        features: np.ndarray | None = None,
        want_logits: bool = True,
        shrink: bool = False,
    ) -> tuple[np.ndarray, State]:
        """Feed int64 [B, S] tokens once, as they are; the plain form of every other method.

        Args:
            mask: int64 [B, S], 0 for left padding of rows whose states are still empty; default all ones.
            positions: int64 [3, B, S]; default text that continues each row.
            features: [F, D] feature rows of the placeholders among these ids, in (row, token) order. None leaves
                placeholders (a model may say one itself) their own embedding, as Transformers does without pictures.
            want_logits: False skips the copy of logits to the host (and returns an empty array).

        Returns:
            logits as the package gives them, [B, 1 or S, V], and the new state.
        """
        new_mask = np.ones_like(ids) if mask is None else mask
        total_mask = self._checked_mask(state, new_mask)
        if positions is None:
            positions = text_positions(state.next_position, ids.shape[1])
        self._check_ids(ids, features)
        features = self.graphs.no_features() if features is None else features
        inputs: dict[str, Any] = {"attention_mask": total_mask, "position_ids": positions, **state.values}
        if self.graphs.decoder == TEXT:
            inputs["input_ids"] = ids
        else:
            embedded = self.graphs.run(EMBEDDING, {"input_ids": ids, "image_features": features})
            inputs["inputs_embeds"] = embedded["inputs_embeds"]
        self.num_steps += 1
        # every past state is read before its present is written, so all may share their buffers
        in_place = {s.present.name: state.values[s.past.name] for s in self._specs}
        outputs = self.graphs.run(
            self.graphs.decoder,
            inputs,
            in_place=in_place if state.is_static else None,
            to_host=frozenset({"logits"}) if want_logits else frozenset(),
            shrink=shrink,
        )
        values = {spec.past.name: outputs[spec.present.name] for spec in self._specs}
        owner = state.owner if state.is_static else self.graphs.sessions.get(self.graphs.decoder)
        following = np.where(new_mask[:, -1] == 1, positions[:, :, -1].max(axis=0) + 1, state.next_position)
        logits_spec = self.graphs.contract(self.graphs.decoder).outputs[0]
        logits = to_numpy(outputs["logits"], logits_spec.dtype) if want_logits else np.empty((len(ids), 0, 0))
        return logits, State(values, total_mask, following, self._specs, self.graphs.device, owner)

    def _decode_in_place(self, graph: DecodeStep, ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        self._check_ids(ids, None)
        self.num_steps += 1
        logits = graph.run(ids, state.length + 1, text_positions(state.next_position, 1))
        mask = np.ones((1, state.length + 1), np.int64)
        return logits[:, -1].astype(np.float32), replace(state, mask=mask, next_position=state.next_position + 1)

    def _rows(self, prompts: Sequence[Prompt], state: State) -> tuple[np.ndarray, np.ndarray]:
        """Ids and mask [B, S], padded on the left."""
        if len(prompts) != state.batch:
            raise InputError(f"{len(prompts)} prompts do not fit a state of {state.batch} rows.")
        lengths = [len(prompt.input_ids) for prompt in prompts]
        longest = max(lengths)
        if state.length and min(lengths) < longest:
            raise InputError(
                "Rows that already have a state can only be continued by prompts of one length: padding inside a row "
                f"would change its linear layers. These have {sorted(set(lengths))} tokens."
            )
        ids = np.zeros((len(prompts), longest), np.int64)
        mask = np.zeros((len(prompts), longest), np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, longest - lengths[row] :] = prompt.input_ids
            mask[row, longest - lengths[row] :] = 1
        return ids, mask

    def _checked_mask(self, state: State, new_mask: np.ndarray) -> np.ndarray:
        mask = np.concatenate([state.mask, new_mask], axis=1).astype(np.int64)
        if mask.shape[0] != state.batch or not np.isin(mask, (0, 1)).all() or (np.diff(mask, axis=1) < 0).any():
            raise InputError(
                "The attention mask has zeros after a token. Only left padding of rows whose states are still empty "
                "is possible: the linear layers would carry any other padding into the answer."
            )
        return mask

    def _check_ids(self, ids: np.ndarray, features: np.ndarray | None) -> None:
        vocabulary = self.config.text.vocab_size
        if ids.min() < 0 or ids.max() >= vocabulary:
            raise InputError(f"Token {ids.max()} is outside the vocabulary of {vocabulary} tokens.")
        placeholders = int(np.isin(ids, self._media_ids).sum())
        if features is not None and placeholders != len(features):
            raise InputError(f"{placeholders} placeholder tokens but {len(features)} feature rows were given.")

    def _check_room(self, length: int, position: int, new_tokens: int) -> None:
        """Refuse a request that outgrows the cache (counted in tokens) or the model (counted in positions)."""
        limit = self.config.text.max_position_embeddings
        rooms = {f"the model has {limit} positions": (position, limit - position)}
        if self.recipe.static_length:
            held = self.recipe.static_length
            rooms[f"the static cache holds {held} tokens"] = (length, held - length)
        for reason, (used, room) in rooms.items():
            if room < new_tokens:
                advice = f"Give --max-new-tokens {room} or less" if room > 0 else "Shorten the prompt or --max-pixels"
                raise UsageError(f"The prompt takes {used} and {new_tokens} new ones follow, but {reason}. {advice}.")

    def _check_memory(self, batch: int, new: int, past: int, *, padded: bool) -> None:
        check_decoder(self._memory, batch, new, past, lambda: free_memory(self.graphs.device), padded=padded)


class _FeatureSlices:
    """Which feature rows belong to the placeholders of a slice, rows of the batch in order."""

    def __init__(self, is_placeholder: np.ndarray, features: np.ndarray) -> None:
        self._is_placeholder = is_placeholder
        self._index = np.cumsum(is_placeholder.reshape(-1)).reshape(is_placeholder.shape) - 1
        self._features = features

    def take(self, part: slice) -> np.ndarray:
        """Feature rows of the slice's placeholders, in (row, token) order."""
        wanted = self._index[:, part][self._is_placeholder[:, part]]
        if len(wanted) and wanted[-1] >= len(self._features):
            raise InputError(f"{wanted[-1] + 1} placeholder tokens but {len(self._features)} feature rows.")
        return self._features[wanted]
