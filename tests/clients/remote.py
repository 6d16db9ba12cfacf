"""Remote devices by name."""

CPU = "/job:worker/replica:0/task:{}/device:CPU:0"
