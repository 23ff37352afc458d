"""KNNQueryBackward in NumPy: the gradient of a Euclidean distance is a unit vector."""

from __future__ import annotations

import numpy as np

from opgate.ops_build.case import Array


def reference(grad_dist: Array, xyz: Array, idx: Array, dist: Array, new_xyz: Array | None) -> tuple[Array, Array]:
    """grad_xyz T [n, d] and grad_new_xyz T [m, d] from grad_dist, idx and dist [m, nsample], computed in f64. A
    distance of 0 or inf has no gradient. Without `new_xyz` the points are the queries: grad_xyz has both gradients and
    grad_new_xyz is 0."""
    queries = xyz if new_xyz is None else new_xyz
    grad_xyz, grad_queries = np.zeros(xyz.shape), np.zeros(queries.shape)
    for query, slot in np.argwhere((dist > 0) & (dist < np.inf)):
        point = idx[query, slot]
        away = (xyz[point].astype(np.float64) - queries[query]) / dist[query, slot]
        grad_xyz[point] += grad_dist[query, slot] * away
        grad_queries[query] -= grad_dist[query, slot] * away
    if new_xyz is None:
        grad_xyz, grad_queries = grad_xyz + grad_queries, np.zeros(queries.shape)
    return grad_xyz.astype(xyz.dtype), grad_queries.astype(xyz.dtype)
