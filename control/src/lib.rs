//! The control plane: coordination, launch and settings, and the one place where it meets the data plane.
