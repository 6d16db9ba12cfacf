"""Writes golden.pb: small graphs with what stock TensorFlow computes from them, for the test beside this file.

    python control/tests/kernels/generate.py control/tests/kernels/golden.pb

The file is one GraphDef. A case is the nodes of one name scope, in the order in which they can run. What is expected of
an output is a Const in the scope "expected", with the output's name in its attribute "_of", and in "_within" how far
from it is still right (relative and absolute). Written with tensorflow-cpu 2.21.
"""

import sys

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

tf.compat.v1.disable_eager_execution()
raw = tf.raw_ops
rng = np.random.default_rng(7)
graph = tf.Graph()
expected = []
F, D, I, L, H, B = np.float32, np.float64, np.int32, np.int64, np.float16, tf.bfloat16.as_numpy_dtype
FLOATS, INTS = [F, D, H, B], [np.int8, np.int16, I, L, np.uint8, np.uint16, np.uint32, np.uint64]


def some(shape, dtype=F, low=-3, high=3):
    if np.dtype(dtype).kind == "u":
        low = max(low, 0)
    return rng.uniform(low, high, shape).astype(dtype)


def case(op, within=None, **inputs):
    """One operation, of constants."""
    def build():
        return getattr(raw, op)(**inputs)
    scene(op, build, within)


def scene(name, build, within=None):
    """A small graph; `build` gives the outputs that are looked at."""
    with graph.as_default(), tf.compat.v1.name_scope(f"{name}/"[:-1].strip("_") or "case"):
        outputs = build()
    outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    for output in outputs:
        expected.append((output, within))


def unary():
    for op, low, high in [("Neg", -3, 3), ("Abs", -3, 3), ("Sign", -3, 3), ("Square", -3, 3), ("Sqrt", 0, 9),
                          ("Rsqrt", .1, 9), ("Exp", -3, 3), ("Expm1", -3, 3), ("Log", .1, 9), ("Log1p", -.9, 9),
                          ("Sin", -9, 9), ("Cos", -9, 9), ("Tan", -1, 1), ("Asin", -1, 1), ("Acos", -1, 1),
                          ("Atan", -9, 9), ("Sinh", -3, 3), ("Cosh", -3, 3), ("Tanh", -3, 3), ("Asinh", -9, 9),
                          ("Acosh", 1, 9), ("Atanh", -.9, .9), ("Sigmoid", -20, 20), ("Erf", -3, 3), ("Erfc", -3, 3),
                          ("Lgamma", .1, 9), ("Floor", -3, 3), ("Ceil", -3, 3), ("Round", -3, 3), ("Rint", -3, 3),
                          ("Reciprocal", .1, 3)]:
        for dtype in [F] + ([D] if op in ("Erf", "Lgamma") else [D, H, B] if op in ("Neg", "Exp", "Sigmoid", "Floor") else []):
            case(op, x=some(5, dtype, low, high))
    for op in ["Neg", "Abs", "Sign", "Square"]:
        case(op, x=some([2, 3], I)), case(op, x=some(5, L))
    case("Round", x=np.array([.5, 1.5, 2.5, -.5, -1.5], F))
    odd = np.array([np.nan, np.inf, -np.inf, 0, 1], F)
    for op in ["IsNan", "IsInf", "IsFinite"]:
        case(op, x=odd)
    case("LogicalNot", x=np.array([True, False])), case("Invert", x=some(4, I)), case("Invert", x=some(4, np.uint8))
    for op in ["Relu", "Relu6", "Elu", "Selu", "Softplus", "Softsign"]:
        for dtype in [F, H]:
            case(op, features=some(9, dtype, -9, 9))
        case(op + "Grad", **{"gradients": some(9), ("outputs" if op in ("Elu", "Selu") else "features"): some(9, F, -1, 8)})
    case("Relu", features=some(5, I)), case("LeakyRelu", features=some(5), alpha=.3)
    case("LeakyReluGrad", gradients=some(5), features=some(5), alpha=.3)
    for op in ["SigmoidGrad", "TanhGrad", "SqrtGrad", "RsqrtGrad", "ReciprocalGrad"]:
        case(op, y=some(5, F, .1, .9), dy=some(5)), case(op, y=some(5, D, .1, .9), dy=some(5, D))


def binary():
    shapes = [([3], [3]), ([2, 3], [3]), ([], [2, 2]), ([2, 1, 3], [4, 1]), ([0, 3], [1]), ([2, 3, 2], [2, 3, 1])]
    for op in ["AddV2", "Sub", "Mul", "Maximum", "Minimum", "SquaredDifference"]:
        for a, b in shapes if op == "Sub" else shapes[1:2]:
            case(op, x=some(a), y=some(b))
        for dtype in [D, H, B, I]:
            case(op, x=some([2, 3], dtype), y=some(3, dtype))
    for dtype in INTS:
        case("AddV2", x=some(4, dtype, -100, 100), y=some(4, dtype, -100, 100))
    for op in ["RealDiv", "DivNoNan", "MulNoNan", "Atan2", "Xdivy"]:
        for dtype in [F, D]:
            first = "y" if op == "Atan2" else "x"
            other = "x" if op == "Atan2" else "y"
            case(op, **{first: some([2, 3], dtype), other: some(3, dtype, .5, 3)})
    case("DivNoNan", x=some(3), y=np.array([0, 1, 2], F)), case("RealDiv", x=some(3), y=np.array([0, 1, 2], F))
    case("Xlogy", x=np.array([0, 1, 2], F), y=np.array([0, 2, 3], F))
    case("Xlog1py", x=np.array([0, 1, 2], F), y=np.array([-1, 2, 3], F))
    whole, parts = np.array([7, -7, 7, -7, 0, 5]), np.array([2, 2, -2, -2, 3, 5])
    for op in ["Div", "FloorDiv", "FloorMod", "TruncateDiv", "TruncateMod"]:
        for dtype in [I, L]:
            case(op, x=whole.astype(dtype), y=parts.astype(dtype))
    for op in ["FloorDiv", "FloorMod"]:
        case(op, x=some(6, F, -9, 9), y=some(6, F, .5, 3)), case(op, x=some(6, F, -9, 9), y=-some(6, F, .5, 3))
    case("Pow", x=some(4, F, .1, 3), y=some(4)), case("Pow", x=np.array([2, -3, 5, 0], I), y=np.array([5, 3, 0, 2], I))
    for op in ["Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual"]:
        case(op, x=np.array([[1, 2], [3, np.nan]], F), y=np.array([1, 2], F))
        case(op, x=np.array([1, 2, 3], I), y=np.array([3, 2, 1], I)), case(op, x=some(3, H), y=some(3, H))
    case("Equal", x=np.array([True, False]), y=np.array([True, True]))
    case("Equal", x=np.array([b"a", b"b"]), y=np.array([b"a"]))
    case("Equal", x=np.array([1, 2], I), y=np.array([1, 2, 3], I), incompatible_shape_error=False)
    case("NotEqual", x=np.array([1, 2], I), y=np.array([1, 2, 3], I), incompatible_shape_error=False)
    a, b = np.array([[True], [False]]), np.array([True, False])
    case("LogicalAnd", x=a, y=b), case("LogicalOr", x=a, y=b)
    for op in ["BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift"]:
        case(op, x=np.array([12, 10, 200], I), y=np.array([10, 3, 1], I))
    case("Add", x=np.array([b"a", b"b"]), y=np.array(b"c"))


def shapes():
    case("Shape", input=some([2, 0, 3])), case("Shape", input=some([2]), out_type=tf.int64)
    case("ShapeN", input=[some([2, 1]), some([])]), case("Rank", input=some([2, 3])), case("Size", input=some([2, 3]))
    case("Reshape", tensor=some([2, 6]), shape=np.array([3, -1], I)), case("Reshape", tensor=some([0, 2]), shape=np.array([2, -1], I))
    case("ExpandDims", input=some([2, 3]), axis=-1), case("ExpandDims", input=some([2, 3]), axis=1)
    case("Squeeze", input=some([1, 2, 1])), case("Squeeze", input=some([1, 2, 1]), axis=[-1])
    case("EnsureShape", input=some([2, 3]), shape=[None, 3])
    for value in [np.array(2, F), np.array(3, L), np.array(True), np.array(b"s"), np.array(1, H), np.array(1, np.complex128)]:
        case("Fill", dims=np.array([2, 2], I), value=value)
    case("ZerosLike", x=some([2])), case("OnesLike", x=some([2], H)), case("OnesLike", x=np.array([True, False]))
    case("Range", start=2, limit=11, delta=3), case("Range", start=np.array(5, L), limit=np.array(-3, L), delta=np.array(-2, L))
    case("Range", start=np.array(0, F), limit=np.array(1, F), delta=np.array(.25, F))
    case("LinSpace", start=np.array(0, F), stop=np.array(1, F), num=5)
    case("BroadcastTo", input=some([2, 1]), shape=np.array([3, 2, 2], I)), case("BroadcastTo", input=some([], L), shape=np.array([2], I))
    for a, b in [([2, 3], [3]), ([2, 3], [2, 3]), ([1, 3], [2, 1]), ([], [2]), ([1], [1, 1]), ([4, 1, 1], [1, 5])]:
        a, b = np.array(a, I), np.array(b, I)
        case("BroadcastArgs", s0=a, s1=b), case("BroadcastGradientArgs", s0=a, s1=b)
    case("InvertPermutation", x=np.array([2, 0, 1], I))


def arrays():
    for dtype in [F, np.uint8, np.complex128]:
        case("ConcatV2", values=[some([2, 1], F).astype(dtype), some([2, 3], F).astype(dtype)], axis=1)
    case("ConcatV2", values=[np.array([b"a"]), np.array([b"b", b"c"])], axis=0)
    case("ConcatV2", values=[some([1, 2, 2]), some([2, 2, 2]), some([0, 2, 2])], axis=-3)
    case("ConcatOffset", concat_dim=1, shape=[np.array([2, 3], I), np.array([2, 1], I)])
    case("Pack", values=[some([2, 3]), some([2, 3])], axis=-1), case("Pack", values=[some([], I), some([], I)])
    case("Unpack", value=some([2, 3]), num=3, axis=1), case("Unpack", value=some([2, 3]), num=2)
    case("Split", axis=1, value=some([2, 4]), num_split=2)
    case("SplitV", value=some([2, 5]), size_splits=np.array([1, -1, 2], L), axis=1, num_split=3)
    case("Slice", input=some([3, 4]), begin=np.array([1, 1], I), size=np.array([-1, 2], I))
    case("Slice", input=some([3, 4]), begin=np.array([1, 0], L), size=np.array([1, 4], L))
    value = some([4, 3, 5])
    for index in [np.s_[1], np.s_[-1, 1:], np.s_[::2], np.s_[::-1, ..., 1], np.s_[..., ::-2], np.s_[1:3, tf.newaxis, :, 2],
                  np.s_[3:1], np.s_[:, 1, -2], np.s_[tf.newaxis, ..., tf.newaxis]]:
        scene("StridedSlice", lambda index=index: tf.constant(value)[index])
        scene("StridedSliceGrad", lambda index=index: tf.gradients(sliced(index), sources[-1]))
    case("Tile", input=some([2, 3]), multiples=np.array([2, 1], I)), case("Tile", input=some([2]), multiples=np.array([3], L))
    case("Tile", input=some([1, 2]), multiples=np.array([2, 0], I))
    pads = np.array([[1, 0], [2, 1]], I)
    case("Pad", input=some([2, 3]), paddings=pads), case("PadV2", input=some([2, 3]), paddings=pads, constant_values=np.array(7, F))
    case("MirrorPad", input=some([2, 3]), paddings=np.array([[1, 0], [2, 1]], I), mode="REFLECT")
    case("MirrorPad", input=some([2, 3]), paddings=np.array([[1, 2], [2, 1]], I), mode="SYMMETRIC")
    for perm in [[1, 0, 2], [2, 1, 0], [0, 2, 1], [0, 1, 2]]:
        case("Transpose", x=value, perm=np.array(perm, I))
    case("Transpose", x=some([2, 2], np.uint8), perm=[1, 0])
    case("ReverseV2", tensor=value, axis=np.array([0, -1], I)), case("Roll", input=some([5]), shift=[2], axis=[0])
    case("Roll", input=some([2, 3]), shift=[-1, 1], axis=[1, 0])
    case("GatherV2", params=some([4, 2]), indices=np.array([[3, 0], [1, 1]], I), axis=0)
    case("GatherV2", params=some([2, 4, 2]), indices=np.array([3, 0], L), axis=1)
    case("GatherV2", params=some([2, 4, 2]), indices=np.array([[3], [0]], I), axis=1, batch_dims=1)
    case("GatherV2", params=np.array([b"a", b"b"]), indices=np.array(1, I), axis=0)
    case("Gather", params=some([4, 2]), indices=np.array([1, 2], I))
    where = np.array([[0, 1], [2, 0]], I)
    case("GatherNd", params=some([3, 2, 2]), indices=where), case("GatherNd", params=some([3, 2]), indices=np.array([[2]], I))
    case("ScatterNd", indices=where, updates=some([2, 2]), shape=np.array([3, 2, 2], I))
    for op in ["Update", "Add", "Sub", "Max", "Min"]:
        case("TensorScatter" + op, tensor=some([3, 2]), indices=np.array([[2], [0]], I), updates=some([2, 2]))
    case("OneHot", indices=np.array([[0, 2], [-1, 5]], I), depth=3, on_value=np.array(1, F), off_value=np.array(0, F))
    case("OneHot", indices=np.array([0, 2], L), depth=3, on_value=np.array(5, I), off_value=np.array(-1, I), axis=0)
    case("Where", condition=np.array([[True, False], [True, True]])), case("Where", condition=np.array([0, 2, 0], F))
    condition = np.array([True, False])
    case("Select", condition=condition, x=some([2, 3]), y=some([2, 3])), case("Select", condition=True, x=some([2]), y=some([2]))
    case("SelectV2", condition=condition, t=some([3, 2]), e=some([])), case("SelectV2", condition=condition, t=some([2], L), e=some([2], L))
    case("Unique", x=np.array([3, 1, 3, 2, 1], I)), case("UniqueWithCounts", x=np.array([3, 1, 3, 2, 1], L), out_idx=tf.int64)
    for op in ["Sum", "Prod", "Max", "Min"]:
        case("UnsortedSegment" + op, data=some([4, 2]), segment_ids=np.array([0, 2, 0, -1], I), num_segments=4)
    case("SegmentSum", data=some([4, 2]), segment_ids=np.array([0, 0, 2, 2], I)), case("SegmentMean", data=some([4, 2]), segment_ids=np.array([0, 0, 2, 2], I))
    case("TopKV2", input=np.array([[1, 5, 3, 5], [2, 2, 9, 0]], F), k=3)
    case("InTopKV2", predictions=some([3, 4]), targets=np.array([0, 1, 2], I), k=2)
    case("DynamicPartition", data=some([4, 2]), partitions=np.array([1, 0, 1, 0], I), num_partitions=2)
    case("DynamicStitch", indices=[np.array([2, 0], I), np.array(1, I)], data=[some([2, 2]), some([2])])
    case("Bincount", arr=np.array([1, 1, 3], I), size=3, weights=np.array([], I))
    kinds = [F, D, H, I, L, np.uint8, np.bool_]
    for a in kinds + [B]:
        for b in kinds if a is not B else [F, I]:
            scene("Cast", lambda a=a, b=b: tf.cast(tf.constant(some(3, F, 0, 3).astype(a)), b))
    case("Bitcast", input=some([2], F), type=tf.uint8), case("Bitcast", input=some([2, 4], np.uint8), type=tf.int32)
    for k in [0, 1, -1]:
        case("MatrixDiagV3", diagonal=some([2, 3]), k=k, num_rows=-1, num_cols=-1, padding_value=np.array(0, F))
    for align in ["RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT"]:
        case("MatrixDiagV3", diagonal=some([3, 3]), k=[-1, 1], num_rows=3, num_cols=4, padding_value=np.array(9, F), align=align)
        case("MatrixDiagPartV3", input=some([2, 3, 4]), k=[-1, 2], padding_value=np.array(9, F), align=align)
    case("MatrixDiag", diagonal=some([2, 3])), case("MatrixDiagPart", input=some([2, 3, 4])), case("Diag", diagonal=some([2, 2]))
    case("MatrixBandPart", input=some([3, 4]), num_lower=1, num_upper=0)


def fused():
    """What stock TensorFlow's optimiser makes of a dense layer; here, what it stands for."""
    product = raw.MatMul(a=some([2, 3]), b=some([3, 2]))
    return raw.Relu(features=raw.BiasAdd(value=product, bias=some([2])))


sources = []


def sliced(index):
    sources.append(tf.identity(tf.constant(some([4, 3, 5]))))
    part = sources[-1][index]
    return part * tf.constant(some(part.shape))


def reductions():
    for op in ["Sum", "Mean", "Prod", "Max", "Min", "EuclideanNorm"]:
        for axis in [[], [0], [1], [-1], [0, 2], [0, 1, 2]] if op in ("Sum", "Max") else [[1]]:
            case(op, input=some([2, 3, 2]), axis=np.array(axis, I))
        case(op, input=some([3, 10]), axis=1, keep_dims=True)
        for dtype in [D, H, I, L]:
            case(op, within=.02 if dtype is H else None, input=some([2, 3], dtype, 1, 4), axis=[1])
        if op != "EuclideanNorm":
            case(op, input=some([0, 2]), axis=[0])
    case("Sum", input=some([300]), axis=[0]), case("Mean", input=some([20, 30]), axis=[0])
    value = np.array([[True, False], [True, True]])
    case("All", input=value, axis=[1]), case("Any", input=value, axis=[0], keep_dims=True)
    for op in ["ArgMax", "ArgMin"]:
        case(op, input=some([3, 4]), dimension=1), case(op, input=np.array([2, 3, 3, 1], I), dimension=0, output_type=tf.int32)
    for op in ["Cumsum", "Cumprod"]:
        for exclusive in [False, True]:
            for reverse in [False, True]:
                case(op, x=some([3, 2]), axis=0, exclusive=exclusive, reverse=reverse)
    case("L2Loss", t=some([7])), case("AddN", inputs=[some([2]), some([2]), some([2])])


def networks():
    for a, b in [(False, False), (True, False), (False, True), (True, True)]:
        for dtype in [F, D, I, H]:
            left, right = some([4, 3] if a else [3, 4], dtype), some([5, 4] if b else [4, 5], dtype)
            case("MatMul", within=.02 if dtype is H else None, a=left, b=right, transpose_a=a, transpose_b=b)
        case("BatchMatMulV2", x=some([2, 1, 4, 3] if a else [2, 1, 3, 4]), y=some([3, 5, 4] if b else [3, 4, 5]), adj_x=a, adj_y=b)
    case("MatMul", a=some([33, 65]), b=some([65, 17])), case("MatMul", a=some([2, 0]), b=some([0, 3]))
    case("BiasAdd", value=some([2, 3, 4]), bias=some([4])), case("BiasAdd", value=some([2, 3]), bias=some([3]))
    case("BiasAddGrad", out_backprop=some([2, 3, 4]))
    for size, window, stride, padding, dilation in [(5, 3, 1, "SAME", 1), (5, 3, 2, "SAME", 1), (6, 2, 2, "VALID", 1),
                                                    (7, 3, 1, "VALID", 2), (4, 1, 1, "VALID", 1), (6, 4, 3, "SAME", 1)]:
        kinds = dict(strides=[1, stride, stride, 1], padding=padding, dilations=[1, dilation, dilation, 1])
        image, kernel = some([2, size, size + 1, 2]), some([window, window, 2, 3])
        case("Conv2D", input=image, filter=kernel, **kinds)
        with graph.as_default():
            shape = raw.Conv2D(input=image, filter=kernel, **kinds).shape
        gradient = some(shape)
        case("Conv2DBackpropFilter", input=image, filter_sizes=np.array(kernel.shape, I), out_backprop=gradient, **kinds)
        case("Conv2DBackpropInput", input_sizes=np.array(image.shape, I), filter=kernel, out_backprop=gradient, **kinds)
    case("Conv2D", input=some([1, 4, 4, 1]), filter=some([3, 3, 1, 1]), strides=[1, 1, 1, 1], padding="EXPLICIT", explicit_paddings=[0, 0, 1, 0, 2, 1, 0, 0])
    for size, window, stride, padding in [(4, 2, 2, "VALID"), (5, 3, 2, "SAME"), (5, 2, 1, "SAME")]:
        kinds = dict(ksize=[1, window, window, 1], strides=[1, stride, stride, 1], padding=padding)
        image = some([2, size, size + 1, 2])
        case("MaxPool", input=image, **kinds), case("AvgPool", value=image, **kinds)
        with graph.as_default():
            pooled = raw.MaxPool(input=image, **kinds)
        gradient = some(pooled.shape)
        scene("MaxPoolGrad", lambda: raw.MaxPoolGrad(orig_input=image, orig_output=raw.MaxPool(input=image, **kinds), grad=gradient, **kinds))
        case("AvgPoolGrad", orig_input_shape=np.array(image.shape, I), grad=gradient, **kinds)
    image, rows = some([2, 2, 3, 2]), lambda: some([2], F, .5, 2)
    for training, factor in [(True, 1.), (True, .25), (False, 1.)]:
        def norm():
            outputs = raw.FusedBatchNormV3(x=image, scale=rows(), offset=rows(), mean=rows(), variance=rows(),
                                           exponential_avg_factor=factor, is_training=training)
            back = raw.FusedBatchNormGradV3(y_backprop=some(image.shape), x=image, scale=rows(), reserve_space_1=outputs[3],
                                            reserve_space_2=outputs[4], reserve_space_3=outputs[5], is_training=training)
            return [*outputs[:5], *back[:3]]
        scene("FusedBatchNormV3", norm, 1e-4)
    scene("Dense", fused)
    case("Softmax", logits=some([2, 5], F, -50, 50)), case("LogSoftmax", logits=some([2, 3, 5], F, -50, 50)), case("Softmax", logits=some([4], D))
    labels = np.array([[0, 1, 0], [.2, .3, .5]], F)
    case("SoftmaxCrossEntropyWithLogits", features=some([2, 3], F, -9, 9), labels=labels)
    case("SparseSoftmaxCrossEntropyWithLogits", features=some([2, 3], F, -9, 9), labels=np.array([2, 0], I))
    case("SparseSoftmaxCrossEntropyWithLogits", features=some([2, 3], D, -9, 9), labels=np.array([2, 0], L))


def random():
    for dtype in [F, D, H, B]:
        for op in ["RandomUniform", "RandomStandardNormal", "TruncatedNormal"]:
            case(op, within=1e-5 if dtype in (F, D) else .01, shape=np.array([3, 5], I), dtype=dtype, seed=20, seed2=3)
    case("RandomUniformInt", shape=[9], minval=np.array(-5, I), maxval=np.array(9, I), seed=1, seed2=2)
    case("RandomUniformInt", shape=[9], minval=np.array(-5, L), maxval=np.array(2**40, L), seed=1, seed2=2)
    case("RandomShuffle", value=np.arange(11, dtype=I), seed=4, seed2=5)
    for op in ["StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal"]:
        case(op, within=1e-5, shape=[7], seed=np.array([1, 2], L))
        key = np.array([12345678901], np.uint64), np.array([5, 7], np.uint64)
        case(op + "V2", within=1e-5, shape=[7], key=key[0], counter=key[1], alg=1)
    case("StatelessRandomUniformInt", shape=[7], seed=np.array([1, 2], I), minval=np.array(0, I), maxval=np.array(10, I))
    case("StatelessRandomGetKeyCounter", seed=np.array([1, 2], L)), case("StatelessRandomGetAlg")


def optimizers():
    shape, hyper = [3, 2], lambda x: np.array(x, F)
    gradient = some(shape)
    dense = [("GradientDescent", 1, lambda v, g: dict(alpha=hyper(.1), delta=g), {}),
             ("Momentum", 2, lambda v, g: dict(lr=hyper(.1), grad=g, momentum=hyper(.9)), {}),
             ("Momentum", 2, lambda v, g: dict(lr=hyper(.1), grad=g, momentum=hyper(.9)), dict(use_nesterov=True)),
             ("KerasMomentum", 2, lambda v, g: dict(lr=hyper(.1), grad=g, momentum=hyper(.9)), dict(use_nesterov=True)),
             ("Adam", 3, lambda v, g: dict(beta1_power=hyper(.8), beta2_power=hyper(.9), lr=hyper(.1), beta1=hyper(.9),
                                           beta2=hyper(.99), epsilon=hyper(1e-3), grad=g), {}),
             ("Adam", 3, lambda v, g: dict(beta1_power=hyper(.8), beta2_power=hyper(.9), lr=hyper(.1), beta1=hyper(.9),
                                           beta2=hyper(.99), epsilon=hyper(1e-3), grad=g), dict(use_nesterov=True)),
             ("Adagrad", 2, lambda v, g: dict(lr=hyper(.1), grad=g), {}),
             ("AdagradV2", 2, lambda v, g: dict(lr=hyper(.1), epsilon=hyper(1e-3), grad=g), {}),
             ("RMSProp", 3, lambda v, g: dict(lr=hyper(.1), rho=hyper(.9), momentum=hyper(.8), epsilon=hyper(1e-3), grad=g), {}),
             ("CenteredRMSProp", 4, lambda v, g: dict(lr=hyper(.1), rho=hyper(.9), momentum=hyper(.8), epsilon=hyper(1e-3), grad=g), {})]
    names = {"GradientDescent": ["var"], "Momentum": ["var", "accum"], "KerasMomentum": ["var", "accum"], "Adam": ["var", "m", "v"],
             "Adagrad": ["var", "accum"], "AdagradV2": ["var", "accum"], "RMSProp": ["var", "ms", "mom"], "CenteredRMSProp": ["var", "mg", "ms", "mom"]}
    for name, count, inputs, attrs in dense:
        starts = [some(shape, F, 2, 3)] + [some(shape, F, .01, .1) for _ in range(count - 1)]
        if name == "CenteredRMSProp":
            starts[2] = starts[2] + 1
        scene(name, lambda: by_handle("ResourceApply" + name, names[name], starts, {**inputs(None, gradient), **attrs}))
        if "Keras" not in name:
            scene(name, lambda: by_reference("Apply" + name, names[name], starts, {**inputs(None, gradient), **attrs}))
        if name in ("Momentum", "KerasMomentum", "Adagrad", "AdagradV2", "RMSProp"):
            rows = dict(indices=np.array([2, 0], I))
            scene(name, lambda: by_handle("ResourceSparseApply" + name, names[name], starts, {**inputs(None, some([2, 2])), **attrs, **rows}))
    start, rows, updates = some([4, 2]), np.array([3, 0, 3], I), some([3, 2])
    for op in ["Add", "Sub", "Mul", "Div", "Min", "Max", "Update"]:
        scene(op, lambda: by_handle("ResourceScatter" + op, ["resource"], [start], dict(indices=rows, updates=updates)))
        scene(op, lambda: by_reference("Scatter" + op, ["ref"], [start], dict(indices=rows, updates=updates)))
    for op in ["Add", "Sub"]:
        scene(op, lambda: by_handle(f"Assign{op}VariableOp", ["resource"], [start], dict(value=some([4, 2]))))
        scene(op, lambda: by_reference(f"Assign{op}", ["ref"], [start], dict(value=some([4, 2]))))
    def gather():
        variable, ready = handle(start)
        with tf.control_dependencies([ready]):
            return (raw.ResourceGather(resource=variable, indices=rows, dtype=tf.float32), raw.VariableShape(input=variable),
                    raw.VarIsInitializedOp(resource=variable))
    scene("ResourceGather", gather)


def name():
    return f"v{len(expected)}_{rng.integers(1 << 30)}"


def handle(start):
    variable = raw.VarHandleOp(dtype=start.dtype, shape=start.shape, shared_name=name())
    return variable, raw.AssignVariableOp(resource=variable, value=start)


def by_handle(op, names, starts, inputs):
    variables, ready = zip(*[handle(start) for start in starts])
    with tf.control_dependencies(ready):
        step = getattr(raw, op)(**dict(zip(names, variables)), **inputs)
    with tf.control_dependencies([step]):
        return [raw.ReadVariableOp(resource=variable, dtype=tf.float32) for variable in variables]


def by_reference(op, names, starts, inputs):
    variables = [raw.VariableV2(shape=start.shape, dtype=start.dtype, shared_name=name()) for start in starts]
    ready = [raw.Assign(ref=variable, value=start) for variable, start in zip(variables, starts)]
    with tf.control_dependencies(ready):
        step = getattr(raw, op)(**dict(zip(names, variables)), **inputs)
    with tf.control_dependencies([step]):
        return [raw.Identity(input=variable) for variable in variables] + [raw.IsVariableInitialized(ref=variables[0])]


def lists():
    def stack():
        stack = raw.StackV2(max_size=4, elem_type=tf.float32)
        pushed = raw.StackPushV2(handle=stack, elem=some([2]))
        with tf.control_dependencies([pushed]):
            return pushed, raw.StackPopV2(handle=stack, elem_type=tf.float32)
    scene("Stack", stack)
    def listed():
        items = raw.TensorListReserve(element_shape=np.array([2], I), num_elements=2, element_dtype=tf.float32)
        items = raw.TensorListSetItem(input_handle=items, index=1, item=some([2]))
        more = raw.TensorListPushBack(input_handle=items, tensor=some([2]))
        _, top = raw.TensorListPopBack(input_handle=more, element_shape=np.array([2], I), element_dtype=tf.float32)
        split = raw.TensorListFromTensor(tensor=some([3, 2]), element_shape=np.array([2], I))
        whole = np.array([2], I)
        return (raw.TensorListStack(input_handle=more, element_shape=whole, element_dtype=tf.float32), top,
                raw.TensorListLength(input_handle=more), raw.TensorListElementShape(input_handle=more, shape_type=tf.int32),
                raw.TensorListGetItem(input_handle=split, index=2, element_shape=whole, element_dtype=tf.float32),
                raw.TensorListStack(input_handle=split, element_shape=whole, element_dtype=tf.float32))
    scene("TensorList", listed)


for family in [unary, binary, shapes, arrays, reductions, networks, random, optimizers, lists]:
    family()
config = tf.compat.v1.ConfigProto()
config.graph_options.rewrite_options.disable_meta_optimizer = True
config.graph_options.optimizer_options.opt_level = -1
with tf.compat.v1.Session(graph=graph, config=config) as session:
    # One case at a time, so that each runs once.
    cases = {}
    for output, within in expected:
        cases.setdefault(output.name.split("/")[0], []).append((output, within))
    golden = graph.as_graph_def()
    scopes = {scope: np.base_repr(index, 36).lower() for index, scope in enumerate(cases)}
    kept = [node for node in golden.node if node.name.split("/")[0] in scopes]
    del golden.node[:]
    golden.node.extend(kept)
    short = {}
    for node in golden.node:
        scope = scopes[node.name.split("/")[0]]
        short[node.name] = f"{scope}/{len(short)}"
        node.name = short[node.name]
        for index, given in enumerate(node.input):
            mark, (source, colon, output) = given[:given.startswith("^")], given.lstrip("^").partition(":")
            node.input[index] = mark + short[source] + colon + output
        defaults = {attr.name: attr.default_value for attr in op_def_registry.get(node.op).attr if attr.HasField("default_value")}
        for attr in list(node.attr):
            if attr.startswith("_") or defaults.get(attr) == node.attr[attr]:
                del node.attr[attr]
    for scope, outputs in cases.items():
        values = session.run([output for output, _ in outputs])
        for index, ((output, within), value) in enumerate(zip(outputs, values)):
            node = golden.node.add(name=f"{scopes[scope]}/expected/{index}", op="Const")
            node.attr["dtype"].type = output.dtype.base_dtype.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, output.dtype.base_dtype, np.shape(value)))
            source, _, at = output.name.partition(":")
            node.attr["_of"].s = f"{short[source]}:{at}".encode()
            node.attr["_within"].f = within or {tf.float16: 2e-3, tf.bfloat16: 1e-2}.get(output.dtype.base_dtype, 2e-5)
golden.ClearField("library")
with open(sys.argv[1], "wb") as out:
    out.write(golden.SerializeToString(deterministic=True))
print(len(cases), "cases,", len(golden.node), "nodes,", golden.ByteSize(), "bytes,", len({n.op for n in golden.node}), "operations")
