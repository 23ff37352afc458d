"""A Ray cluster of two nodes on this machine: python -m tests.deploy.ray_cluster DASHBOARD_PORT

Prints `ready` and runs until its standard input ends.
"""

import sys

from ray.cluster_utils import Cluster

if __name__ == "__main__":
    head = {"num_cpus": 1, "include_dashboard": True, "dashboard_port": int(sys.argv[1])}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=1)
        print("ready", flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()
