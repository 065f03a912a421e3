"""Ways to damage a package on purpose, each in the smallest possible edit."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

WIDTH = {onnx.TensorProto.FLOAT: 4, onnx.TensorProto.FLOAT16: 2, onnx.TensorProto.BFLOAT16: 2}


class Damaged:
    """A copy of a package."""

    def __init__(self, package: Path, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(package, folder)

    def rehash(self) -> None:
        """Rewrite the manifest's hashes, as one who hides a change would."""
        file = self.folder / "manifest.json"
        manifest = json.loads(file.read_text(encoding="utf-8"))
        for name, record in manifest["files"].items():
            data = (self.folder / name).read_bytes()
            record.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
        file.write_text(json.dumps(manifest), encoding="utf-8")

    def graph(self, component: str) -> onnx.ModelProto:
        return onnx.load(self.folder / component / "model.onnx", load_external_data=False)

    def save(self, component: str, model: onnx.ModelProto) -> None:
        (self.folder / component / "model.onnx").write_bytes(model.SerializeToString())

    def weight(self, component: str, name: str) -> np.ndarray:
        """A weight's stored bytes, as unsigned integers of its width, mapped for writing."""
        tensor = next(t for t in self.graph(component).graph.initializer if t.name == name)
        place = {entry.key: entry.value for entry in tensor.external_data}
        width = WIDTH[tensor.data_type]
        return np.memmap(
            self.folder / component / "model.onnx.data", dtype=f"u{width}", mode="r+",
            offset=int(place["offset"]), shape=tuple(tensor.dims),
        )  # fmt: skip


def flip_top_exponent_bit(package: Damaged, name: str = "layers.2.up_proj") -> None:
    """One weight of the decoder becomes huge."""
    weight = package.weight("decoder", name)
    weight[3, 5] ^= 1 << (8 * weight.itemsize - 2)
    weight.flush()


def drop_epsilon(package: Damaged, component: str, node_name: str) -> None:
    """A norm loses its epsilon attribute, so that the operator's default takes its place."""
    model = package.graph(component)
    node = next(node for node in every_node(model.graph) if node.name == node_name)
    node.attribute.remove(next(a for a in node.attribute if a.name == "epsilon"))
    package.save(component, model)


def swap_red_and_blue(package: Damaged) -> None:
    """The patch embedding reads the colours in the wrong order."""
    weight = package.weight("vision_encoder", "prelude.patch_embed_proj_weight")
    by_colour = weight.reshape(len(weight), 3, -1)
    by_colour[:] = by_colour[:, ::-1].copy()
    weight.flush()


def shift_one_position(package: Damaged) -> None:
    """The height axis of every position is off by one."""
    model = package.graph("decoder")
    shift = np.array([0, 1, 0], np.int64).reshape(3, 1, 1)
    feed(model.graph, "position_ids", "Add", shift)
    package.save("decoder", model)


def swap_height_and_width(package: Damaged) -> None:
    """The vision encoder reads every grid as (t, w, h)."""
    model = package.graph("vision_encoder")
    feed(model.graph, "image_grid_thw", "Gather", np.array([0, 2, 1], np.int64), axis=1)
    package.save("vision_encoder", model)


def forget_between_chunks(package: Damaged) -> None:
    """The state that a Scan of layer 1 carries from chunk to chunk is zero."""
    model = package.graph("decoder")
    scan = next(n for n in every_node(model.graph) if n.op_type == "Scan" and n.name.startswith("layers.1."))
    body = next(attribute.g for attribute in scan.attribute if attribute.name == "body")
    body.initializer.append(numpy_helper.from_array(np.zeros((), np.float32), "nothing"))
    copy = next(node for node in body.node if node.op_type == "Identity")
    copy.op_type = "Mul"
    copy.input.append("nothing")
    package.save("decoder", model)


def scale_weight(package: Damaged, name: str, factor: float) -> None:
    """A weight of the decoder grows."""
    weight = package.weight("decoder", name)
    values = weight.view(f"f{weight.itemsize}")
    values[:] = values * values.dtype.type(factor)
    weight.flush()


def feed(graph: onnx.GraphProto, name: str, operator: str, operand: np.ndarray, **attributes: int) -> None:
    """Put an operator between a graph input and its readers."""
    for node in graph.node:
        for index, read in enumerate(node.input):
            if read == name:
                node.input[index] = "changed"
    graph.initializer.append(numpy_helper.from_array(operand, "operand"))
    node = helper.make_node(operator, [name, "operand"], ["changed"], name=f"prelude.{operator}_99", **attributes)
    graph.node.insert(0, node)


def every_node(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Nodes of a graph and of all its subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from every_node(attribute.g)
