"""Running the example programs."""
import contextlib
import json
import tempfile


@contextlib.contextmanager
def described(cluster):
    """The path of a JSON file that describes the cluster."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(cluster.addresses, file)
        file.flush()
        yield file.name
