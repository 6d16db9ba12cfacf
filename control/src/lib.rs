//! The control plane: coordination, launch and settings, and the one place where it meets the data plane.

pub mod launch;
pub mod settings;
