"""Modules that the tests of `opgate export` export, among them the forms of the tutorials on custom operators."""

from __future__ import annotations

import torch

import opgate.torch
from tests.ops_build import foreign_ops

LIBRARY = torch.library.Library("torch_cluster", "DEF")
LIBRARY.define("grid(Tensor pos, Tensor size, Tensor? start, Tensor? end) -> Tensor")
LIBRARY.impl("grid", foreign_ops.grid, "CPU")
LIBRARY.define("other(Tensor x) -> Tensor")
LIBRARY.impl("other", torch.sin, "CPU")


@torch.library.register_fake("torch_cluster::grid", lib=LIBRARY)
def _grid_shape(pos, size, start, end):
    return pos.new_empty(pos.shape[0], dtype=torch.int64)


@torch.library.register_fake("torch_cluster::other", lib=LIBRARY)
def _other_shape(x):
    return torch.empty_like(x)


class Picture(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.mish = opgate.torch.Mish()

    def forward(self, x):
        return self.mish(self.convolution(x))


class Function(torch.nn.Module):
    """A module that is one function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


class ManyNamed(torch.nn.Module):
    """A module that returns a dict, as segmentation networks do, with a list in it and without a part."""

    def forward(self, x):
        return {"out": x + 1, "aux": x * 2, "left_out": None, "parts": [x - 1, x[:, :2]], "x": x / 2, "parts_0": x * 3}


class Detector(torch.nn.Module):
    """A module that returns a dict for its picture."""

    def forward(self, x):
        return [{"boxes": x * 3, "scores": x.sum(1)}]


class Asinh(torch.nn.Module):
    def forward(self, x):
        return torch.asinh(x) * 2


class Grid(torch.nn.Module):
    def forward(self, pos, size):
        return torch.ops.torch_cluster.grid(pos, size, None, None)


class BoundedGrid(torch.nn.Module):
    def forward(self, pos, size, start, end):
        return torch.ops.torch_cluster.grid(pos, size, start, end)


class OwnKNNQuery(foreign_ops.KNNQuery):
    """A function whose symbolic names opgate's op."""

    @staticmethod
    def symbolic(g, nsample, xyz, offset, new_xyz=None, new_offset=None):
        inputs = [tensor for tensor in (xyz, offset, new_xyz, new_offset) if tensor is not None]
        return g.op("opgate::KNNQuery", *inputs, nsample_i=nsample, outputs=2)


class LonelyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def symbolic(g, x):
        return g.op("mine::Double", x)


class Neighbours(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, xyz, offset, new_xyz=None, new_offset=None):
        return self.function.apply(4, xyz, offset, new_xyz, new_offset)


class Norms(torch.nn.Module):
    """Ops of opgate with attributes and several outputs. One of them has no decomposition."""

    def forward(self, x):
        y, total = opgate.torch.rms_norm(x, residual=x)
        return opgate.torch.asinh(y), opgate.torch.gelu(total)


def cloud():
    torch.manual_seed(1)
    return torch.rand(20, 3), torch.tensor([12, 20], dtype=torch.int32)


def knn():
    return Neighbours(foreign_ops.KNNQuery), cloud()


def knn_with_queries():
    return Neighbours(foreign_ops.KNNQuery), (*cloud(), torch.rand(5, 3), torch.tensor([2, 5], dtype=torch.int32))


def own_knn():
    return Neighbours(OwnKNNQuery), cloud()


def lonely():
    return Function(LonelyFunction.apply), torch.rand(3)


def random():
    return Function(lambda x: x + torch.rand_like(x)), torch.zeros(4)


def fails():
    return Function(lambda x: x @ torch.rand(3, 3))


def number():
    return 3


def number_out():
    return Function(lambda x: 3), torch.zeros(1)


def bad_examples():
    return Picture(), ["x"]


def other():
    return Function(torch.ops.torch_cluster.other), torch.zeros(4)


def broken():
    raise RuntimeError("no weights")


MADE = Picture()


def positive_grid():
    torch.manual_seed(2)
    return Grid(), (torch.randn(30, 3), torch.rand(3) + 0.1)


def positive_bounded_grid():
    return BoundedGrid(), (*positive_grid()[1], torch.full((3,), -2.0), torch.full((3,), 2.0))


def numbers():
    """A module with an op of somebody's own library, which is loaded before the factory is called."""
    texts = torch.tensor(list(b"12345"), dtype=torch.uint8)
    return Function(torch.ops.fixture_ops.parse_number), (texts, torch.tensor([2, 5], dtype=torch.int32))
