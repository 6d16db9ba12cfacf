"""Networks that read digits, as users of TensorFlow 1 write them."""
import tensorflow as tf
from sessions import v1


def perceptron(images, use_resource=True):
    """Logits [n, 10] of images [n, 64]: one hidden layer."""
    hidden = tf.nn.relu(dense(images, 64, "hidden", use_resource))
    return dense(hidden, 10, "logits", use_resource)


def convolutional(images, use_resource=True):
    """Logits [n, 10] of images [n, 64]: two convolutions, each with a pooling."""
    x = tf.reshape(images, [-1, 8, 8, 1])
    for name, filters in [("first", 8), ("second", 16)]:
        with v1.variable_scope(name, use_resource=use_resource):
            kernel = v1.get_variable("kernel", [3, 3, x.shape[-1], filters], initializer=v1.truncated_normal_initializer(stddev=0.2))
            bias = v1.get_variable("bias", [filters], initializer=v1.zeros_initializer())
        x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, strides=1, padding="SAME"), bias))
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    return dense(tf.reshape(x, [-1, 2 * 2 * 16]), 10, "logits", use_resource)


def dense(x, width, name, use_resource):
    with v1.variable_scope(name, use_resource=use_resource):
        weights = v1.get_variable("weights", [x.shape[-1], width])  # Glorot's uniform range
        bias = v1.get_variable("bias", [width], initializer=v1.zeros_initializer())
    return tf.matmul(x, weights) + bias
