"""How the tensors between two tasks of ours travelled: what `ringway serve` says of it as it ends."""
import re

LINE = re.compile(r"tensors received: (\d+) over the data plane \((\d+) B\), (\d+) over gRPC \((\d+) B\)")


def received(cluster, job, index):
    """(tensors, bytes) over the data plane and (tensors, bytes) over gRPC that a task of ours has received. Ends it."""
    log = cluster.stop(job, index)
    line = LINE.search(log)
    assert line, f"{job}:{index} does not say how its tensors came: {log}"
    plane, plane_bytes, grpc, grpc_bytes = map(int, line.groups())
    return (plane, plane_bytes), (grpc, grpc_bytes)


def assert_no_tensor_in_grpc(cluster, at_least):
    """Every task of ours got tensors over the data plane, `at_least` in all, and none of another task's in gRPC."""
    tasks = [(job, i) for job, kinds in cluster.layout.items() for i in range(len(kinds))]
    if any(cluster.kind(*task) == "stock" for task in tasks):
        return
    seen = {task: received(cluster, *task) for task in tasks}
    print(f"tensors received: {seen}")
    assert all(grpc == (0, 0) for _, grpc in seen.values()), seen
    assert sum(plane[0] for plane, _ in seen.values()) >= at_least, seen
