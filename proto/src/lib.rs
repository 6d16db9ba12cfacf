//! The messages and gRPC services that Ringway speaks, and the code generated from them.
//!
//! The `.proto` files under `proto/` are the source; `src/generated` is made from them by
//! `cargo run -p ringway-proto --example generate` and committed, so that a build needs no protobuf compiler. A
//! test holds the two together.
#![forbid(unsafe_code)]

/// TensorFlow's services and messages: coordination (in all its revisions), master and worker.
#[allow(missing_docs, deprecated, clippy::all, clippy::pedantic, unreachable_pub)]
#[rustfmt::skip]
pub mod tensorflow {
    include!("generated/tensorflow.rs");

    /// Remote eager.
    pub mod eager {
        include!("generated/tensorflow.eager.rs");
    }

    /// Canonical status codes.
    pub mod error {
        include!("generated/tensorflow.error.rs");
    }
}

/// XLA's services.
pub mod xla {
    /// Coordination, as JAX's clients speak it.
    #[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]
    #[rustfmt::skip]
    pub mod coordination {
        include!("generated/xla.coordination.rs");
    }
}

/// The part of etcd's services (version 3) that keeping state and electing a leader need.
pub mod etcd {
    /// Services and messages.
    #[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]
    #[rustfmt::skip]
    pub mod v3 {
        include!("generated/etcdserverpb.rs");
    }
}
/// The descriptors of all files, as gRPC reflection takes them: an encoded `google.protobuf.FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

/// Ringway's own services.
pub mod ringway {
    /// Session setup: groups and losses; status.
    #[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]
    #[rustfmt::skip]
    pub mod v1 {
        include!("generated/ringway.v1.rs");
    }

    /// Rounds of elastic groups.
    pub mod rounds {
        /// Their service, and what is remembered of them.
        #[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]
        #[rustfmt::skip]
        pub mod v1 {
            include!("generated/ringway.rounds.v1.rs");
        }
    }
}
