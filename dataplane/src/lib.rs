//! Moves bytes between ranks: memory, the Transport trait, its transports, and the fabric that picks one per peer.
