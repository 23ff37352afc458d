"""Point clouds: pointops' knnquery and torch_cluster's grid, under the names that tutorials give them."""

from __future__ import annotations

from opgate.onnx_tools.foreign.node import Foreign, ForeignNode, Refused


def _knn_query(node: ForeignNode) -> str:
    """The first versions of pointops take (nsample, xyz, new_xyz, offset, new_offset), later ones (nsample, xyz,
    offset, new_xyz, new_offset). A tensor of points has two axes, and one of ends has one. Queries that are left out
    are the points."""
    if not node.has(2):
        points, ends = 2, 3
    else:
        rank = node.rank(2)
        if rank not in (1, 2):
            raise Refused("input 2 has an unknown rank: it may be the points that are searched for or the ends")
        points, ends = (2, 3) if rank == 2 else (3, 2)
    if not node.has(ends):
        raise Refused(f"input {ends} (the ends of the segments) is absent")
    queries = node.has(points) and node.has(4)
    if node.has(points) and not queries and ends == 3:
        raise Refused("input 4 (new_offset) is absent, and input 2 (new_xyz) is there")
    names = ("nsample", "xyz", "a", "b", "new_offset")
    inputs = ["xyz", names[ends], *([names[points], "new_offset"] if queries else [])]
    return f"idx, dist = opgate.KNNQuery <nsample = {node.scalar(0)}> ({', '.join(inputs)})"


def _grid_cluster(node: ForeignNode) -> str:
    inputs = [name.removesuffix("?") if node.has(i) else "" for i, name in enumerate(node.rewrite.inputs)]
    while not inputs[-1]:
        inputs.pop()
    return f"cluster = opgate.GridCluster ({', '.join(inputs)})"


REWRITES = (
    Foreign(
        names=("custom::knnquery", "custom::KNNQuery", "pointops::knnquery"),
        op="KNNQuery",
        inputs=("nsample", "xyz", "a?", "b?", "new_offset?"),
        outputs=("idx", "dist"),
        body=_knn_query,
        note="a missing neighbour has the index -1 and the distance inf; pointops' versions differ in this",
    ),
    Foreign(
        names=("custom::torch_cluster_grid", "torch_cluster::grid", "torch_cluster::grid_cluster"),
        op="GridCluster",
        inputs=("pos", "size", "start?", "end?"),
        outputs=("cluster",),
        body=_grid_cluster,
    ),
)
