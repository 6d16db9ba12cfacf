"""The devices of all tasks, by their full names."""
from sessions import session

CLUSTER = {"worker": 2}


def run(cluster):
    with session(cluster.target()) as sess:
        devices = {each.name: each for each in sess.list_devices() if each.device_type == "CPU"}
        assert sorted(devices) == [f"/job:worker/replica:0/task:{n}/device:CPU:0" for n in range(2)], devices
        assert len({each.incarnation for each in devices.values()}) == 2
        assert all(each.memory_limit_bytes > 0 for each in devices.values())
