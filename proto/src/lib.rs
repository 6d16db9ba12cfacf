//! The messages and gRPC services that Ringway speaks, and the code generated from them.
