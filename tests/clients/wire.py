"""Requests past the client library's own checks: protobuf by field numbers, gRPC by method names."""
import grpc
from tensorflow.python.framework.errors_impl import exception_type_from_error_code

DEADLINE_S = 20


class Fixed64(int):
    """An integer that is written in eight bytes, as TensorFlow's context numbers are."""


def message(*fields):
    """The bytes of a message, from (number, bytes, str, int or Fixed64) in order."""
    out = b""
    for number, value in fields:
        if isinstance(value, Fixed64):
            out += varint(number << 3 | 1) + value.to_bytes(8, "little")
        elif isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def fields(data):
    """{number: last value} of a message; nested ones stay bytes."""
    found, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(data):
        tag = number()
        kind = tag & 7
        if kind == 0:
            found[tag >> 3] = number()
            continue
        length = {1: 8, 5: 4}.get(kind) or number()
        found[tag >> 3] = data[at:at + length]
        at += length
    return found


class Service:
    """A gRPC service by its name. Errors are those of tf.errors."""

    def __init__(self, address, name):
        self.channel, self.name = grpc.insecure_channel(address), name

    def call(self, method, request):
        try:
            return self.channel.unary_unary(f"/{self.name}/{method}")(request, timeout=DEADLINE_S)
        except grpc.RpcError as error:
            raise exception_type_from_error_code(error.code().value[0])(None, None, error.details()) from None


class Master(Service):
    """A master as its clients see it on the wire."""

    def __init__(self, address):
        super().__init__(address, "tensorflow.MasterService")

    def create(self, graph):
        """CreateSession; the handle."""
        return fields(self.call("CreateSession", message((1, graph.SerializeToString()))))[1].decode()

    def extend(self, handle, graph, version):
        """ExtendSession; the new version."""
        request = message((1, handle), (2, graph.SerializeToString()), (3, version))
        return fields(self.call("ExtendSession", request))[4]

    def run(self, handle, fetch=(), target=()):
        """RunStep without feeds, its error in the body."""
        request = message((1, handle), *((3, name) for name in fetch), *((4, name) for name in target), (7, 1))
        answer = fields(self.call("RunStep", request))
        if answer.get(3):
            raise exception_type_from_error_code(answer[3])(None, None, answer.get(4, b"").decode())
        return answer

    def close(self, handle):
        self.call("CloseSession", message((1, handle)))
